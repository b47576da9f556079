//! How locks in other languages are built, once: by the package names of what they need, in a
//! folder beside this program. Where a tool or a registry cannot be had, that is the reason why the
//! peer is ignored.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tenure_servers::Node;

use self::Language::{Go, Java, Node as Javascript, Python};
use super::{Process, last_lines};
use crate::warm::Entry;

/// The longest step of a build: fetching all packages over a slow network.
const LONGEST: Duration = Duration::from_secs(300);

pub(crate) const REDSYNC: Recipe = Recipe {
    name: "redsync",
    language: Go,
    source: include_str!("../../peers/redsync.go"),
    packages: &["github.com/go-redsync/redsync/v4@v4.18.1", "github.com/redis/go-redis/v9@v9.23.0"],
};
pub(crate) const ETCD: Recipe = Recipe {
    name: "etcd",
    language: Go,
    source: include_str!("../../peers/etcd.go"),
    packages: &["go.etcd.io/etcd/client/v3@v3.7.3"],
};
pub(crate) const CONSUL: Recipe = Recipe {
    name: "consul",
    language: Go,
    source: include_str!("../../peers/consul.go"),
    packages: &["github.com/hashicorp/consul/api@v1.32.1"],
};
pub(crate) const REDISSON: Recipe = Recipe {
    name: "redisson",
    language: Java,
    source: include_str!("../../peers/Redisson.java"),
    packages: &["org.redisson:redisson:4.7.0"],
};
pub(crate) const CURATOR: Recipe = Recipe {
    name: "curator",
    language: Java,
    source: include_str!("../../peers/Curator.java"),
    packages: &["org.apache.curator:curator-recipes:5.9.0"],
};
pub(crate) const REDIS_PY: Recipe = Recipe {
    name: "redis-py",
    language: Python,
    source: include_str!("../../peers/redis_py.py"),
    packages: &["redis==8.1.0"],
};
pub(crate) const KAZOO: Recipe = Recipe {
    name: "kazoo",
    language: Python,
    source: include_str!("../../peers/kazoo_lock.py"),
    packages: &["kazoo==2.11.0"],
};
pub(crate) const NODE_REDLOCK: Recipe = Recipe {
    name: "node-redlock",
    language: Javascript,
    source: include_str!("../../peers/node_redlock.mjs"),
    packages: &["redlock@5.0.0-beta.2", "ioredis@5"],
};

/// What a peer is made of.
pub(crate) struct Recipe {
    name: &'static str,
    language: Language,
    source: &'static str,
    packages: &'static [&'static str],
}

#[derive(Clone, Copy)]
enum Language {
    Go,
    Java,
    Node,
    Python,
}

impl Recipe {
    /// The peer as a subject, or why it cannot be had. A peer may know several kinds of locks.
    pub(crate) fn entry(&self, name: &str, node: &Node, kind: &str) -> Entry<'static> {
        let started = self.start(node, kind);
        let reason = || format!("could not get {}", self.name);
        let subject = started.map(|process| Box::new(process) as _).with_context(reason);
        Entry { subject, ..Entry::missing(name) }
    }

    /// Builds it if necessary, and starts it.
    pub(crate) fn start(&self, node: &Node, kind: &str) -> Result<Process> {
        let folder = self.built()?;
        let command = match self.language {
            Go => Command::new(folder.join("peer")),
            Java => {
                let mut java = Command::new("java");
                let class_path = format!("{0}:{0}/lib/*", folder.display());
                java.args(["-Xmx512m", "-cp", &class_path, "Peer"]);
                java
            }
            Python => {
                let mut python = Command::new(folder.join("venv/bin/python"));
                python.arg(folder.join("peer.py"));
                python
            }
            Javascript => {
                let mut node = Command::new("node");
                node.arg(folder.join("peer.mjs"));
                node
            }
        };
        // A virtual machine compiles what is hot, and that takes thousands of cycles.
        let warm_up = if matches!(self.language, Java) { 4000 } else { 600 };
        Process::start(command, node, kind, warm_up)
    }

    /// The folder of the built peer.
    fn built(&self) -> Result<PathBuf> {
        let here = std::env::current_exe()?;
        let folder = here.parent().context("a program is in a folder")?.join("peers");
        let folder = folder.join(self.name);
        let (protocol, protocol_file, file) = match self.language {
            Go => (include_str!("../../peers/protocol.go"), "protocol.go", "peer.go"),
            Java => (include_str!("../../peers/Protocol.java"), "Protocol.java", "Peer.java"),
            Python => (include_str!("../../peers/protocol.py"), "protocol.py", "peer.py"),
            Javascript => (include_str!("../../peers/protocol.mjs"), "protocol.mjs", "peer.mjs"),
        };
        let stamp = format!("{}\n{protocol}\n{}", self.packages.join(" "), self.source);
        if fs::read_to_string(folder.join("built")).is_ok_and(|text| text == stamp) {
            return Ok(folder);
        }
        // What an earlier version left, or a build that was broken off.
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(protocol_file), protocol)?;
        fs::write(folder.join(file), self.source)?;
        eprintln!("building {}", self.name);
        match self.language {
            Go => self.build_go(&folder)?,
            Java => self.build_java(&folder)?,
            Python => {
                run(&folder, "python3", &["-m", "venv", "venv"])?;
                let install = ["-m", "pip", "install", "--quiet"];
                run(&folder, "venv/bin/python", &[&install, self.packages].concat())?;
            }
            Javascript => {
                fs::write(folder.join("package.json"), r#"{"private":true}"#)?;
                let install = ["install", "--silent", "--no-audit", "--no-fund"];
                run(&folder, "npm", &[&install, self.packages].concat())?;
            }
        }
        fs::write(folder.join("built"), stamp)?;
        Ok(folder)
    }

    fn build_go(&self, folder: &Path) -> Result<()> {
        run(folder, "go", &["mod", "init", "peer"])?;
        run(folder, "go", &[&["get"], self.packages].concat())?;
        // Not `go mod tidy`, which wants what the tests of the packages need, too.
        run(folder, "go", &["build", "-mod=mod", "-o", "peer", "."])
    }

    fn build_java(&self, folder: &Path) -> Result<()> {
        let dependencies = self.packages.iter().map(|package| {
            let mut parts = package.split(':');
            let mut next = || parts.next().unwrap_or_default();
            format!(
                "<dependency><groupId>{}</groupId><artifactId>{}</artifactId>\
                 <version>{}</version></dependency>",
                next(),
                next(),
                next()
            )
        });
        let dependencies: String = dependencies.collect();
        let project = format!(
            "<project><modelVersion>4.0.0</modelVersion><groupId>tenure</groupId>\
             <artifactId>peer</artifactId><version>1</version>\
             <dependencies>{dependencies}</dependencies></project>"
        );
        fs::write(folder.join("pom.xml"), project)?;
        let copy = ["-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"];
        run(folder, "mvn", &copy)?;
        run(folder, "javac", &["-cp", "lib/*", "-d", ".", "Protocol.java", "Peer.java"])
    }
}

/// Runs a tool to its end; why that failed, in one line.
fn run(folder: &Path, tool: &str, arguments: &[&str]) -> Result<()> {
    let log = tempfile::tempfile()?;
    let program = if tool.contains('/') { folder.join(tool) } else { PathBuf::from(tool) };
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command.stdout(log.try_clone()?).stderr(log.try_clone()?);
    let mut child = command.spawn().with_context(|| format!("there is no {tool}"))?;
    let start = Instant::now();
    while start.elapsed() < LONGEST {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("{tool}: {status}: {}", last_lines(&log)),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    child.kill()?;
    child.wait()?;
    bail!("{tool}: not done after {LONGEST:?}")
}
