//! `cargo xtask book`: a site of all pages by mdBook, from the same files, with search.
//!
//! The pages are copied with the folders they stand in, so that their links hold; what they link
//! besides (examples, pictures) is copied too. mdBook is installed below `target` and is no
//! dependency of any crate.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::tidy::links::{FRONT, SUMMARY, links, resolve, target};
use crate::tidy::{read, root};

/// The version that the site was last looked at with.
const VERSION: &str = "0.5.4";
const CONFIG: &str = r#"[book]
title = "tenure"
language = "en"

[output.html]
default-theme = "light"
preferred-dark-theme = "navy"
no-section-label = true

[output.html.playground]
runnable = false

[output.html.search]
limit-results = 20

[output.html.fold]
enable = true
level = 1
"#;

pub(crate) fn run() -> ExitCode {
    let root = root();
    let folder = root.join("target/book");
    match make(&root, &folder) {
        Ok(()) => {
            println!("{}", folder.join("site/index.html").display());
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn make(root: &Path, folder: &Path) -> Result<(), String> {
    let mdbook = mdbook(root)?;
    let written = write_sources(root, folder);
    written.map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut build = Command::new(mdbook);
    build.arg("build").arg(folder).arg("--dest-dir").arg(folder.join("site"));
    match build.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("mdbook failed: {status}")),
        Err(error) => Err(format!("mdbook could not be run: {error}")),
    }
}

/// mdBook of our version: below `target`, else installed there.
fn mdbook(root: &Path) -> Result<PathBuf, String> {
    let tools = root.join("target/tools");
    let program = tools.join("bin/mdbook");
    let version = Command::new(&program).arg("--version").output();
    let fits = |text: &[u8]| String::from_utf8_lossy(text).contains(VERSION);
    if version.is_ok_and(|output| fits(&output.stdout)) {
        return Ok(program);
    }
    eprintln!("xtask: installing mdbook {VERSION} below target/tools; once, some minutes");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut install = Command::new(cargo);
    install.args(["install", "mdbook", "--locked", "--version", VERSION, "--root"]).arg(&tools);
    install.arg("--target-dir").arg(root.join("target/tools-build")).current_dir(root);
    if install.status().is_ok_and(|status| status.success()) {
        return Ok(program);
    }
    Err(format!(
        "mdbook {VERSION} could not be installed: is the registry reachable? The pages can be read \
         without it, beginning with {SUMMARY}"
    ))
}

fn write_sources(root: &Path, folder: &Path) -> io::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let sources = folder.join("src");
    fs::create_dir_all(&sources)?;
    fs::write(folder.join("book.toml"), CONFIG)?;
    let summary = read(&root.join(SUMMARY));
    fs::write(sources.join("SUMMARY.md"), from_root(&summary))?;
    let listed = links(&summary).map(|link| resolve(SUMMARY, target(link).0));
    let mut pages: Vec<PathBuf> = listed.collect();
    pages.extend(FRONT.iter().map(PathBuf::from));
    pages.sort();
    pages.dedup();
    for page in &pages {
        let text = read(&root.join(page));
        let name = page.display().to_string();
        write(&sources.join(page), &for_the_book(root, &name, &text))?;
        for link in links(&text).filter(|link| !link.contains("://")) {
            let linked = resolve(&name, target(link).0);
            let from = root.join(&linked);
            if from.is_file() && !pages.contains(&linked) {
                let to = sources.join(&linked);
                fs::create_dir_all(to.parent().unwrap_or(&sources))?;
                fs::copy(from, to)?;
            }
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text)
}

/// The table of contents as it is at the root, where mdBook wants it.
fn from_root(summary: &str) -> String {
    let moved = summary.replace("](", "](docs/").replace("](docs/../", "](");
    format!("{moved}\n")
}

/// The page without links to folders, which a site cannot show, and with the language of a block
/// alone in its info string.
fn for_the_book(root: &Path, name: &str, text: &str) -> String {
    let mut page = text.replace("](docs/SUMMARY.md)", "](docs/choose.md)");
    let folders: Vec<&str> = links(text)
        .filter(|link| !link.contains("://") && root.join(resolve(name, link)).is_dir())
        .filter(|link| !link.starts_with('#'))
        .collect();
    for link in folders {
        let readme = Path::new(link).join("README.md");
        let new = if root.join(resolve(name, &readme.display().to_string())).exists() {
            format!("]({})", readme.display())
        } else {
            "]".to_owned()
        };
        page = page.replace(&format!("]({link})"), &new);
    }
    // mdBook makes an index of each README, and leaves the links to it as they are.
    let page = page.replace("](README.md", "](index.md").replace("/README.md", "/index.md");
    let lines = page.lines().map(|line| match line.strip_prefix("```") {
        Some(info) => format!("```{}\n", info.split(' ').next().unwrap_or_default()),
        None => format!("{line}\n"),
    });
    lines.collect()
}
