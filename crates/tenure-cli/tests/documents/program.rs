//! README's first program, in an empty folder beside the clone, as a new user builds it.

use std::fs;

use libtest_mimic::{Failed, Trial};

use crate::console::{cargo_itself, to_its_end};
use crate::markdown::{Page, root};

pub(crate) fn trial(pages: &[Page]) -> Trial {
    let readme = pages.iter().find(|page| page.name == "README.md").expect("there is a README");
    let block = |language: &str| {
        let block = readme.blocks.iter().find(|block| block.language == language);
        block.unwrap_or_else(|| panic!("README has no block of {language}")).text.clone()
    };
    let (manifest, program) = (block("toml"), block("rust,no_run"));
    Trial::test("program::the_first_program_of_the_readme", move || run(&manifest, &program))
}

fn run(manifest: &str, program: &str) -> Result<(), Failed> {
    let root = root();
    let library = root.join("crates/tenure");
    if !manifest.contains("\"../tenure/crates/tenure\"") {
        return Err("the manifest does not name the clone beside it".into());
    }
    let manifest = manifest.replace("../tenure/crates/tenure", &library.display().to_string());
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("src")).unwrap();
    fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    fs::write(folder.path().join("src/main.rs"), program).unwrap();
    // The versions that are on this machine already.
    fs::copy(root.join("Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
    let mut build = std::process::Command::new(cargo_itself());
    build.args(["build", "--quiet", "--offline", "--target-dir"]);
    build.arg(root.join("target/documents")).current_dir(folder.path());
    // What cargo sets for this test is not what a user has.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CARGO_")) {
        if name != "CARGO_HOME" {
            build.env_remove(name);
        }
    }
    let built = build.output().unwrap();
    if !built.status.success() {
        return Err(String::from_utf8_lossy(&built.stderr).into_owned().into());
    }
    let mut hello = std::process::Command::new(root.join("target/documents/debug/hello"));
    hello.env("HOME", folder.path()).env_remove("XDG_STATE_HOME");
    let ended = to_its_end(&mut hello)?;
    if ended.code == Some(0) && ended.text.starts_with("held, with token ") {
        return Ok(());
    }
    Err(format!("{:?} {}", ended.code, ended.text).into())
}
