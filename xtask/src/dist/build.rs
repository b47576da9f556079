//! The binary of a release: static, stripped, and without paths of the machine that built it.
//!
//! It has no `tenure lab`: a program for machines in production should not be able to download and
//! start servers.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds it, and returns its path.
pub(super) fn program(root: &Path) -> Result<PathBuf, String> {
    let cpu = std::env::consts::ARCH;
    let musl = format!("{cpu}-unknown-linux-musl");
    let target = if is_installed(&musl) {
        needs_compiler(&musl)?;
        musl
    } else {
        eprintln!(
            "xtask: the target {musl} is not installed (rustup target add {musl}), so that \
             glibc is linked statically instead"
        );
        format!("{cpu}-unknown-linux-gnu")
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--locked", "--profile", "dist", "--package", "tenure-cli"]);
    build.args(["--no-default-features", "--target", &target]).current_dir(root);
    let folder = root.join("target");
    build.arg("--target-dir").arg(&folder);
    build.env("CARGO_ENCODED_RUSTFLAGS", flags(root));
    match build.status() {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("the build for {target} failed: {status}")),
        Err(error) => return Err(format!("cargo could not be run: {error}")),
    }
    Ok(folder.join(target).join("dist/tenure"))
}

/// Panics name their source files: not by where they are on this machine.
fn flags(root: &Path) -> String {
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
    flags.extend(cargo.map(|cargo| format!("--remap-path-prefix={}=/cargo", cargo.display())));
    flags.push(format!("--remap-path-prefix={}=/tenure", root.display()));
    flags.join("\x1f")
}

/// Whether the standard library is there for this target.
fn is_installed(target: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--print", "target-libdir", "--target", target])
        .stderr(Stdio::null())
        .output();
    output.is_ok_and(|output| {
        let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        !folder.is_empty() && Path::new(&folder).is_dir()
    })
}

/// SQLite and the cryptography are C: without a compiler for musl the build would fail late, with
/// an error of a build script.
fn needs_compiler(target: &str) -> Result<(), String> {
    let variable = format!("CC_{}", target.replace('-', "_"));
    let named = std::env::var_os(&variable);
    let compiler = named.unwrap_or_else(|| "musl-gcc".into());
    let mut version = Command::new(&compiler);
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    if version.status().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    Err(format!(
        "{target} is installed, but there is no C compiler for it: `{}` cannot be run. Install \
         musl-gcc (on Debian: musl-tools), or name one in {variable}",
        compiler.display()
    ))
}
