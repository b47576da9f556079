//! The cases, and how packages are made for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tempfile::TempDir;
use tenure_servers::require;

use crate::support;

type Case = fn(&Packages) -> Result<(), Failed>;

/// Name, the tool that it needs and how the tool shows that it is there, and the test.
const CASES: &[(&str, &[&str], Case)] = &[
    ("the_archive_has_all_files_and_its_program_runs", &["tar", "--version"], archive),
    ("the_wheel_installs_with_pip", &["python3", "-c", "import venv, ensurepip"], wheel),
    ("the_npm_package_installs_with_npm", &["npm", "--version"], npm),
    ("the_debian_package_unpacks", &["dpkg-deb", "--version"], deb),
    ("the_checksums_are_those_of_the_packages", &["sha256sum", "--version"], checksums),
    ("packages_of_the_same_program_are_equal", &["true"], equal),
];

/// pip installs without a look at the hashes in RECORD; what audits an installation does look.
const CHECK_RECORD: &str = "
import base64, csv, hashlib, io, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
assert wheel.testzip() is None
record = [name for name in wheel.namelist() if name.endswith('/RECORD')][0]
rows = list(csv.reader(io.StringIO(wheel.read(record).decode())))
assert [row[0] for row in rows] == wheel.namelist()
for name, found, size in rows:
    content = wheel.read(name)
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip('=')
    right = ('', '') if name == record else ('sha256=' + digest, str(len(content)))
    assert (found, size) == right, name
";

static PACKAGES: OnceLock<Result<Packages, String>> = OnceLock::new();

pub(crate) fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(2);
    let trials = CASES.iter().map(|(name, tool, case)| {
        Trial::ignorable_test(*name, move || {
            if let Err(reason) = has(tool) {
                let required = require(tool[0]) || std::env::var_os("CI").is_some();
                return if required {
                    Err(format!("{reason}, and it is required").into())
                } else {
                    Ok(Completion::ignored_with(reason))
                };
            }
            case(Packages::get()?).map(|()| Completion::Completed)
        })
    });
    // `exit` would leave the packages behind: a static is not dropped.
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if let Some(Ok(packages)) = PACKAGES.get() {
        fs::remove_dir_all(packages.folder.path()).unwrap();
    }
    conclusion.exit();
}

fn has(tool: &[&str]) -> Result<(), String> {
    let shown = tool.join(" ");
    match Command::new(tool[0]).args(&tool[1..]).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("`{shown}` fails here: {}", output.status)),
        Err(error) => Err(format!("there is no `{}`: {error}", tool[0])),
    }
}

/// The packages, made once for all tests.
struct Packages {
    folder: TempDir,
    program: PathBuf,
}

impl Packages {
    fn get() -> Result<&'static Packages, Failed> {
        PACKAGES.get_or_init(Packages::make).as_ref().map_err(|error| error.as_str().into())
    }

    fn make() -> Result<Packages, String> {
        let folder = tempfile::tempdir().unwrap();
        // Without its debug information it is a third as large; with it, it does as well.
        let stripped = folder.path().join("tenure");
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(&stripped).arg(env!("CARGO_BIN_EXE_tenure"));
        let is_stripped = strip.output().is_ok_and(|output| output.status.success());
        let whole = PathBuf::from(env!("CARGO_BIN_EXE_tenure"));
        let program = if is_stripped { stripped } else { whole };
        let packages = Packages { folder, program };
        packages.dist("out").map_err(|failed| failed.message().unwrap_or_default().to_owned())?;
        Ok(packages)
    }

    /// Makes all packages in this folder.
    fn dist(&self, out: &str) -> Result<(), Failed> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut dist = Command::new(cargo);
        dist.args(["run", "--quiet", "--package", "xtask", "--", "dist", "--uncompressed"]);
        dist.arg("--binary").arg(&self.program).arg("--out").arg(self.folder.path().join(out));
        dist.current_dir(root).env_remove("SOURCE_DATE_EPOCH");
        // What cargo sets for this test is not what a user has.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CARGO_")) {
            if !["CARGO_HOME", "CARGO_TARGET_DIR"].contains(&name.as_str()) {
                dist.env_remove(name);
            }
        }
        done(&mut dist).map(drop)
    }

    /// The only package whose name ends like this.
    fn ending(&self, end: &str) -> PathBuf {
        let files = fs::read_dir(self.folder.path().join("out")).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        let mut fitting = paths.filter(|path| path.to_string_lossy().ends_with(end));
        let found = fitting.next().unwrap_or_else(|| panic!("there is no package `{end}`"));
        assert!(fitting.next().is_none(), "there are two packages `{end}`");
        found
    }

    /// A new folder to install in.
    fn place(&self, name: &str) -> PathBuf {
        let place = self.folder.path().join(name);
        fs::create_dir(&place).unwrap();
        place
    }
}

fn archive(packages: &Packages) -> Result<(), Failed> {
    let place = packages.place("archive");
    let package = packages.ending(".tar.gz");
    done(Command::new("tar").arg("-xzf").arg(&package).arg("-C").arg(&place))?;
    let name = package.file_name().unwrap().to_string_lossy().into_owned();
    let folder = place.join(name.trim_end_matches(".tar.gz"));
    for (file, part) in [
        ("completions/tenure", "complete"),
        ("completions/_tenure", "#compdef tenure"),
        ("completions/tenure.fish", "complete"),
        ("man/tenure.1", ".TH tenure 1"),
        ("man/tenure-run.1", ".TH tenure-run 1"),
        ("LICENSE-APACHE", "Apache License"),
        ("LICENSE-MIT", "MIT"),
        ("README.md", "# tenure"),
    ] {
        let text =
            fs::read_to_string(folder.join(file)).map_err(|error| format!("{file}: {error}"))?;
        if !text.contains(part) {
            return Err(format!("{file} has no `{part}`").into());
        }
    }
    works(&mut Command::new(folder.join("tenure")), &place)
}

fn wheel(packages: &Packages) -> Result<(), Failed> {
    let place = packages.place("wheel");
    let venv = place.join("venv");
    done(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    let pip = |arguments: &[&str]| {
        let mut pip = Command::new(venv.join("bin/python"));
        pip.args(["-m", "pip", "--disable-pip-version-check"]).args(arguments);
        pip
    };
    done(Command::new("python3").args(["-c", CHECK_RECORD]).arg(packages.ending(".whl")))?;
    done(pip(&["install", "--no-index"]).arg(packages.ending(".whl")))?;
    works(&mut Command::new(venv.join("bin/tenure")), &place)?;
    // RECORD names what was installed, so that it can be removed again.
    done(&mut pip(&["uninstall", "--yes", "tenure"]))?;
    if venv.join("bin/tenure").exists() {
        return Err("the program is still there after `pip uninstall`".into());
    }
    Ok(())
}

fn npm(packages: &Packages) -> Result<(), Failed> {
    let place = packages.place("npm");
    let mut npm = Command::new("npm");
    npm.args(["install", "--offline", "--no-audit", "--no-fund"]).arg(packages.ending(".tgz"));
    npm.current_dir(&place).env("npm_config_cache", place.join("cache"));
    fs::write(place.join("package.json"), "{}").unwrap();
    done(&mut npm)?;
    works(&mut Command::new(place.join("node_modules/.bin/tenure")), &place)?;
    let mut npx = Command::new("npx");
    npx.args(["--offline", "tenure"]).env("npm_config_cache", place.join("cache"));
    works(npx.current_dir(&place), &place)
}

fn deb(packages: &Packages) -> Result<(), Failed> {
    let place = packages.place("deb");
    let package = packages.ending(".deb");
    done(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&place))?;
    let name = done(Command::new("dpkg-deb").arg("--field").arg(&package).arg("Package"))?;
    if name.stdout != b"tenure\n" {
        return Err(format!("{name:?}").into());
    }
    for file in [
        "bash-completion/completions/tenure",
        "zsh/vendor-completions/_tenure",
        "fish/vendor_completions.d/tenure.fish",
        "man/man1/tenure-run.1.gz",
        "doc/tenure/copyright",
    ] {
        if !place.join("usr/share").join(file).is_file() {
            return Err(format!("there is no {file}").into());
        }
    }
    works(&mut Command::new(place.join("usr/bin/tenure")), &place)
}

fn checksums(packages: &Packages) -> Result<(), Failed> {
    let out = packages.folder.path().join("out");
    let mut check = Command::new("sha256sum");
    let checked = done(check.args(["--check", "SHA256SUMS"]).current_dir(&out))?;
    let lines = String::from_utf8_lossy(&checked.stdout).lines().count();
    let files = fs::read_dir(&out).unwrap().count();
    // Every file but the list itself.
    if lines + 1 == files { Ok(()) } else { Err(format!("{lines} of {files} files").into()) }
}

fn equal(packages: &Packages) -> Result<(), Failed> {
    packages.dist("again")?;
    let sums = |out: &str| {
        fs::read_to_string(packages.folder.path().join(out).join("SHA256SUMS")).unwrap()
    };
    let (first, again) = (sums("out"), sums("again"));
    if first == again { Ok(()) } else { Err(format!("{first}\n{again}").into()) }
}

/// Runs a tool to its end, which has to be a success.
fn done(command: &mut Command) -> Result<Output, Failed> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    Err(format!("{command:?}: {}\n{text}", output.status).into())
}

/// Whether this is the program: it runs a command under a lock, with a home of its own.
fn works(program: &mut Command, home: &Path) -> Result<(), Failed> {
    program.args(["run", "hello", "--", "echo", "it works"]).env("HOME", home);
    for name in ["TENURE_URL", "TENURE_REACH", "XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
        program.env_remove(name);
    }
    let output = support::output(program);
    if output.status.success() && output.stdout == b"it works\n" {
        return Ok(());
    }
    Err(format!("{program:?}: {output:?}").into())
}
