//! Where the programs of the servers come from: an installed one, if its version is supported;
//! otherwise packages of the Debian mirror that this machine's apt uses, unpacked into the cache
//! folder.
//!
//! | file | job |
//! |---|---|
//! | `installed` | programs of the host |
//! | `bundle` | makes a bundle: a server with its libraries in one folder |
//! | `deb` | the packages of each bundle, and how its programs run |
//! | `apt`, `mirror` | downloads packages with a private apt |
//! | `newest` | the option `TENURE_SERVERS_NEWEST` |
//! | `cache` | the folder of the bundles, and who may write to it |

mod apt;
mod bundle;
mod cache;
mod deb;
mod installed;
mod mirror;
mod newest;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use bundle::fetch;

pub use bundle::Bundle;
pub use cache::dir;
pub(crate) use cache::{is_trusted, trusted_dir};
pub(crate) use newest::Newest;

use crate::error::{Error, Result};

/// The program of a server, and how to run it.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The executable file.
    path: PathBuf,
    /// The root of its bundle; `None` for a program of the host.
    root: Option<PathBuf>,
    /// The version that a program of the host reports; `None` for a bundle, whose version is known.
    pub(crate) version: Option<(u32, u32)>,
}

impl Program {
    /// The command line up to the program's own arguments. `preload` is a shared object to load
    /// into the process first.
    pub(crate) fn argv(&self, preload: Option<&Path>) -> Vec<OsString> {
        match &self.root {
            Some(root) => deb::argv(root, &self.path, preload),
            None => match preload {
                // With `env`, so that the shell and setpriv before it do not load the object.
                Some(object) => {
                    let mut variable = OsString::from("LD_PRELOAD=");
                    variable.push(object);
                    vec!["env".into(), variable, self.path.clone().into()]
                }
                None => vec![self.path.clone().into()],
            },
        }
    }

    /// The root of its bundle; `None` for a program of the host.
    pub(crate) fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// The program in a copy of its bundle.
    pub(crate) fn moved_to(&self, copy: &Path) -> Self {
        let inside = self.root().and_then(|root| self.path.strip_prefix(root).ok());
        let path = inside.map_or_else(|| self.path.clone(), |inside| copy.join(inside));
        Self { path, root: Some(copy.to_owned()), version: self.version }
    }

    /// The folder that contains its `bin` or `sbin` and `share`.
    pub(crate) fn prefix(&self) -> PathBuf {
        let real = std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        real.ancestors().nth(2).unwrap_or(&real).to_owned()
    }

    /// Another program in the same folder.
    pub(crate) fn sibling(&self, name: &str) -> Self {
        Self { path: self.path.with_file_name(name), ..self.clone() }
    }
}

/// Finds the main program of a bundle: on the host, or fetched from the mirror.
pub(crate) fn program(bundle: Bundle) -> Result<Program> {
    let origin = Origin::allowed_for(bundle)?;
    if origin != Origin::Bundle
        && let Some((path, version)) = installed::find(bundle)
    {
        return Ok(Program { path, root: None, version: Some(version) });
    }
    if origin == Origin::Path {
        let reason = format!("no supported version on PATH ({})", installed::requirement(bundle));
        return Err(Error::missing(bundle.name(), reason));
    }
    let root = fetch(bundle)?;
    Ok(Program { path: root.join(deb::program(bundle)), root: Some(root), version: None })
}

/// A command that runs another program of a server's bundle, or of the host beside the server.
pub(crate) fn tool(bundle: Bundle, name: &str) -> Result<Command> {
    let program = program(bundle)?.sibling(name);
    if !program.path.is_file() {
        let reason = format!("there is no `{name}` beside it");
        return Err(Error::missing(bundle.name(), reason));
    }
    let mut argv = program.argv(None).into_iter();
    let mut command = Command::new(argv.next().unwrap_or_default());
    command.args(argv);
    Ok(command)
}

/// The class path of ZooKeeper, and the Java that runs it.
pub(crate) fn zookeeper() -> Result<(OsString, Program)> {
    let java = program(Bundle::Jre)
        .map_err(|error| Error::missing("zookeeper", format!("no Java 11 or newer: {error}")))?;
    Ok((zookeeper_jars()?, java))
}

fn zookeeper_jars() -> Result<OsString> {
    let origin = Origin::allowed_for(Bundle::Zookeeper)?;
    if origin != Origin::Bundle
        && let Some(class_path) = installed::zookeeper_class_path()
    {
        return Ok(class_path);
    }
    if origin == Origin::Path {
        return Err(Error::missing("zookeeper", "no zkServer.sh on PATH and no Debian package"));
    }
    let jars = fetch(Bundle::Zookeeper)?.join("usr/share/java");
    Ok(installed::debian_class_path(&jars))
}

/// Makes sure that the server of a bundle is available: on PATH, or fetched. Returns its path.
pub(crate) fn provide(bundle: Bundle) -> Result<PathBuf> {
    match bundle {
        Bundle::Zookeeper => zookeeper_jars().map(PathBuf::from),
        _ => program(bundle).map(|program| program.root.unwrap_or(program.path)),
    }
}

/// The origin of programs that `TENURE_SERVERS_USE` allows.
#[derive(Clone, Copy, PartialEq)]
enum Origin {
    Auto,
    Bundle,
    Path,
}

impl Origin {
    /// What the environment allows for a bundle. The newest servers are always fetched.
    fn allowed_for(bundle: Bundle) -> Result<Self> {
        let server = bundle.name();
        newest::check(server)?;
        match (Self::from_env(server)?, Newest::from_env().concerns(bundle)) {
            (Self::Path, true) => Err(Error::failed(
                format!("get {server}"),
                format!("TENURE_SERVERS_USE=path contradicts {}", newest::VARIABLE),
            )),
            (_, true) => Ok(Self::Bundle),
            (allowed, false) => Ok(allowed),
        }
    }

    fn from_env(server: &str) -> Result<Self> {
        match env::var("TENURE_SERVERS_USE").as_deref() {
            Err(_) | Ok("" | "auto") => Ok(Self::Auto),
            Ok("bundle") => Ok(Self::Bundle),
            Ok("path") => Ok(Self::Path),
            Ok(other) => Err(Error::failed(
                format!("get {server}"),
                format!("TENURE_SERVERS_USE is `{other}` (known: auto, bundle, path)"),
            )),
        }
    }
}
