//! `cargo xtask dist`: the program as packages: an archive, a wheel for pip, one for npm and one
//! for Debian, all of the same binary, and their checksums.
//!
//! | module | |
//! |---|---|
//! | `build` | the static, stripped binary |
//! | `binary` | what a binary needs of a machine |
//! | `content` | what the packages carry |
//! | `formats` | the packages |
//! | `archive` | tar, gzip and zip, equal byte by byte for equal content |

mod archive;
mod binary;
mod build;
mod content;
mod formats;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use flate2::Compression;
use sha2::{Digest, Sha256};

use self::archive::Style;
use self::content::Content;
use crate::tidy::{read, root};

const USAGE: &str = "\
Usage: cargo xtask dist [--binary PATH] [--out DIR] [--uncompressed]

  --binary PATH    pack this program; without it, one is built: static, with musl where the target
                   is installed, else with glibc, stripped, and without `tenure lab`
  --out DIR        where the packages go; without it, target/packages
  --uncompressed   large packages, made in a moment: for tests

The time of all files is SOURCE_DATE_EPOCH, or the start of 1980.
";
/// The start of 1980, before which zip knows no time.
const FIRST_TIME: u32 = 315_532_800;

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    binary: Option<PathBuf>,
    out: Option<PathBuf>,
    uncompressed: bool,
}

pub(crate) fn run(arguments: &[&str]) -> ExitCode {
    if arguments.iter().any(|argument| ["--help", "-h"].contains(argument)) {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let options = match Options::read(arguments) {
        Ok(options) => options,
        Err(message) => {
            eprint!("xtask: {message}\n\n{USAGE}");
            return ExitCode::from(64);
        }
    };
    match make(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

impl Options {
    fn read(arguments: &[&str]) -> Result<Options, String> {
        let mut options = Options::default();
        let mut left = arguments.iter();
        while let Some(argument) = left.next() {
            let path = match *argument {
                "--uncompressed" => {
                    options.uncompressed = true;
                    continue;
                }
                "--binary" => &mut options.binary,
                "--out" => &mut options.out,
                unknown => return Err(format!("`dist` does not know `{unknown}`")),
            };
            let value = left.next().filter(|value| !value.is_empty());
            *path = Some(value.ok_or_else(|| format!("{argument} needs a path"))?.into());
        }
        Ok(options)
    }
}

fn make(options: &Options) -> Result<(), String> {
    let root = root();
    let level = if options.uncompressed { Compression::none() } else { Compression::best() };
    let style = Style { time: time()?, compression: level };
    let program = match &options.binary {
        Some(program) => std::path::absolute(program).map_err(|error| error.to_string())?,
        None => build::program(&root)?,
    };
    let content = Content::of(&program, &root, &version(&root)?)?;
    println!("{}: {}", program.display(), content.needs);
    let out = options.out.clone().unwrap_or_else(|| root.join("target/packages"));
    let packages = formats::all(&content, style).map_err(|error| error.to_string())?;
    fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let mut sums = String::new();
    for package in &packages {
        write(&out.join(&package.name), &package.bytes)?;
        let sum = Sha256::digest(&package.bytes);
        let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        sums.push_str(&format!("{sum}  {}\n", package.name));
    }
    write(&out.join("SHA256SUMS"), sums.as_bytes())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("{:>9} kB  {}", bytes.len().div_ceil(1000), path.display());
    Ok(())
}

/// The version of the workspace.
fn version(root: &Path) -> Result<String, String> {
    let manifest = read(&root.join("Cargo.toml"));
    let section = manifest.split("[workspace.package]").nth(1).unwrap_or_default();
    let version = section.lines().find_map(|line| line.strip_prefix("version = "));
    let version = version.map(|version| version.trim_matches('"').to_owned());
    version.ok_or_else(|| "Cargo.toml: has no version of the workspace".to_owned())
}

fn time() -> Result<u32, String> {
    let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") else { return Ok(FIRST_TIME) };
    let time = text.trim().parse().ok().filter(|time| *time >= FIRST_TIME);
    time.ok_or_else(|| format!("SOURCE_DATE_EPOCH is `{text}`, not seconds from 1980 to 2106"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_is_unknown_or_has_no_path_is_refused() {
        let options = Options::read(&["--out", "a", "--binary", "b"]);
        let out = Some("a".into());
        assert_eq!(options, Ok(Options { binary: Some("b".into()), out, uncompressed: false }));
        for wrong in [&["--out"][..], &["--out", ""], &["--output", "a"], &["a"]] {
            assert!(Options::read(wrong).is_err(), "{wrong:?}");
        }
    }
}
