//! `tenure run k -- true` compared with `flock f true`: what a lock costs in a shell script.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::compare::Comparison;

pub(crate) fn compare(rounds: usize) -> Result<Comparison> {
    let folder = tempfile::tempdir()?;
    let tenure = program()?;
    let file = folder.path().join("flock");
    let url = format!("sqlite://{}/locks.db", folder.path().display());
    if Command::new("flock").arg("--version").stdout(Stdio::null()).status().is_err() {
        bail!("there is no flock(1) on this machine to compare with");
    }
    Comparison::run(
        rounds,
        1,
        vec![
            ("flock f true", Box::new(|| spawn(Command::new("flock").arg(&file).arg("true")))),
            ("true", Box::new(|| spawn(&mut Command::new("true")))),
            (
                "tenure run k -- true",
                Box::new(|| {
                    let words = ["--url", &url, "run", "k", "--", "true"];
                    spawn(Command::new(&tenure).args(words))
                }),
            ),
        ],
    )
}

fn spawn(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { bail!("{command:?}: {status}") }
}

/// The path of `tenure` in the folder of this program. It is built first, with the same profile.
fn program() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let program = here.parent().context("a program is in a folder")?.join("tenure");
    let release = here.components().any(|part| part.as_os_str() == "release");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", "tenure-cli"]);
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
    if release {
        build.arg("--release");
    }
    match build.status() {
        Ok(status) if !status.success() => bail!("`tenure` could not be built: {status}"),
        Err(error) if !program.exists() => bail!("`tenure` could not be built: {error}"),
        Ok(_) | Err(_) => Ok(program),
    }
}
