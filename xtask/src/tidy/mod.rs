//! What no lint sees: file headers, retired words, the anatomy of backends, sizes, and documents
//! that do not fit the code.

mod anatomy;
mod code;
pub(crate) mod links;
mod manifest;
mod map;
mod pages;
mod sizes;
mod text;
mod translation;
mod words;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) fn run() -> ExitCode {
    let faults = check(&root());
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The features of the library, except `default`.
pub(crate) fn features() -> Vec<String> {
    let manifest = read(&root().join("crates/tenure/Cargo.toml"));
    let section = manifest.split("[features]").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let names = section.lines().filter_map(|line| line.split_once(" = ["));
    let names = names.map(|(name, _)| name.trim().to_owned());
    names.filter(|name| name != "default" && !name.starts_with('#')).collect()
}

/// A text file of the workspace: its path from the root, and its text.
struct Source {
    name: String,
    text: String,
}

fn check(root: &Path) -> Vec<String> {
    let sources: Vec<Source> = files(root)
        .into_iter()
        .map(|path| Source {
            name: path.strip_prefix(root).unwrap_or(&path).display().to_string(),
            text: read(&path),
        })
        .collect();
    let mut faults = Vec::new();
    for source in &sources {
        faults.extend(text::faults(&source.name, &source.text));
        faults.extend(words::faults(&source.name, &source.text));
        if source.name.ends_with(".rs") {
            faults.extend(code::faults(&source.name, &source.text));
            faults.extend(sizes::faults(&source.name, &source.text));
        }
    }
    faults.extend(sizes::promise_faults(root));
    faults.extend(anatomy::faults(root, &sources));
    faults.extend(map::faults(root, &sources));
    faults.extend(manifest::faults(root));
    faults.extend(links::faults(root, &sources));
    faults.extend(pages::faults(root, &sources));
    faults.extend(translation::faults(root));
    faults
}

/// One row of the table in `backends/mod.rs`.
struct BackendRow {
    module: String,
    feature: String,
    schemes: Vec<String>,
}

/// The table of backends.
fn backends(root: &Path) -> Vec<BackendRow> {
    let table = read(&root.join("crates/tenure/src/backends/mod.rs"));
    let rows = table.split("\nbackends! {").nth(1).unwrap_or_default();
    let rows = rows.split("\n}").next().unwrap_or_default();
    let rows: String = rows.lines().filter(|line| !line.contains("//")).collect();
    let rows = rows.split(';').filter_map(|row| {
        let mut words = row.split_whitespace();
        let module = words.next()?.to_owned();
        let feature = words.next()?.trim_matches('"').to_owned();
        let schemes = row.split('"').skip(3).step_by(2).map(str::to_owned).collect();
        Some(BackendRow { module, feature, schemes })
    });
    rows.collect()
}

/// The text files that are written by hand.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return found };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && name != ".git" {
                found.extend(files(&path));
            }
        } else if [".rs", ".md", ".toml", ".lua", ".sql"].iter().any(|end| name.ends_with(end)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// What stands in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_is_tidy() {
        let faults = check(&root());
        assert!(faults.is_empty(), "{faults:#?}");
    }

    #[test]
    fn faults_of_one_file_are_found() {
        let wide = format!("//! x\n// {}\n", "x".repeat(100));
        let long = format!("//! x\n{}", "const X: u8 = 0;\n".repeat(sizes::FILE_LINES));
        let body = "    f();\n".repeat(sizes::FUNCTION_LINES);
        let long_function = format!("//! x\nfn f() {{\n{body}}}\n");
        for (name, text, part) in [
            ("a.rs", "fn f() {}\n", "does not begin"),
            ("a.rs", wide.as_str(), "100 columns"),
            ("a.rs", long.as_str(), "lines"),
            ("a.rs", long_function.as_str(), "`f` has"),
            ("a.rs", "//! x \n", "trailing space"),
            ("crates/a.rs", "//! Somebody waits.\n", "`somebody`"),
            ("crates/a.rs", "//! x\nstruct JanitorTask;\n", "`janitor`"),
            ("crates/a.rs", "//! x\nfn until_rung() {}\n", "`rung`"),
            ("docs/a.md", "It gives the lock back.\n", "`gives the lock back`"),
            ("crates/tenure/src/x.rs", "//! x\nfn f() { println!() }\n", "`println!`"),
            ("crates/tenure/src/x.rs", "//! x\nfn f() { a.unwrap() }\n", "`.unwrap()`"),
            ("crates/tenure/src/guard.rs", "//! x\nuse crate::client::x;\n", "stands above"),
            ("crates/tenure/src/x.rs", "//! x\npub async fn f() {}\n", "Cancel safety"),
            ("crates/tenure/src/x.rs", "//! x\n/// Y.\npub struct Y;\n", "no example"),
            ("crates/tenure/src/x.rs", "//! x\npub fn f()\n  -> impl Future {}\n", "Cancel safety"),
            (
                "crates/tenure/src/x.rs",
                "//! x\nfn f() { match a { true => 1, false => 2 } }\n",
                "if",
            ),
            ("crates/tenure/src/x.rs", "//! x\n/// The same, later.\nfn f() {}\n", "The same"),
            ("crates/tenure/src/x.rs", "//! x\nfn f() {}\n\nconst A: u8 = 0;\n", "constant"),
        ] {
            let mut faults = text::faults(name, text);
            faults.extend(words::faults(name, text));
            faults.extend(code::faults(name, text));
            faults.extend(sizes::faults(name, text));
            assert!(faults.iter().any(|fault| fault.contains(part)), "{part}: {faults:?}");
        }
    }

    #[test]
    fn ordinary_words_are_no_faults() {
        for text in ["ZooKeeper keeps it.", "The grant is taken back by nothing.", "string wording"]
        {
            assert_eq!(words::faults("docs/a.md", text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn the_features_are_read_from_the_manifest() {
        assert!(features().contains(&"memory".to_owned()));
        assert!(!features().contains(&"default".to_owned()));
    }

    #[test]
    fn the_table_of_backends_is_read() {
        let rows = backends(&root());
        let redis = rows.iter().find(|row| row.module == "redis").expect("redis is a backend");
        assert_eq!(redis.feature, "redis");
        assert!(redis.schemes.contains(&"redis+sentinel".to_owned()), "{:?}", redis.schemes);
    }
}
