//! What no lint sees: file headers, forbidden words, the direction of imports, backends without
//! their page, and documents that name code that is not there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) fn run() -> ExitCode {
    let faults = look(&root());
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

/// The features of the library, but for `default`.
pub(crate) fn features() -> Vec<String> {
    let manifest = read(&root().join("crates/tenure/Cargo.toml"));
    let section = manifest.split("[features]").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let names = section.lines().filter_map(|line| line.split_once(" = ["));
    let names = names.map(|(name, _)| name.trim().to_owned());
    names.filter(|name| name != "default" && !name.starts_with('#')).collect()
}

fn look(root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for path in files(root) {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let text = read(&path);
        faults.extend(text_faults(&name, &text));
        if name.ends_with(".rs") {
            faults.extend(code_faults(&name, &text));
        }
    }
    faults.extend(backend_faults(root));
    faults.extend(map_faults(root));
    faults.extend(licence_faults(root));
    faults
}

/// A crate is published without what lies above its folder, and its licences ask for their text.
fn licence_faults(root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for path in files(root).iter().filter(|path| path.ends_with("Cargo.toml")) {
        let Some(folder) = path.parent().filter(|folder| folder.starts_with(root.join("crates")))
        else {
            continue;
        };
        let published = !read(path).contains("publish = false");
        for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
            if published && read(&folder.join(name)) != read(&root.join(name)) {
                faults.push(format!("{}: is not the one above", folder.join(name).display()));
            }
        }
    }
    faults
}

/// Faults that any text can have.
fn text_faults(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    // Written in two parts, so that this file does not find itself.
    let forbidden =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("dbg", "!("), concat!("/ro", "ot/")];
    for (number, line) in text.lines().enumerate() {
        let mut fault = |what: &str| faults.push(format!("{name}:{}: {what}", number + 1));
        if line.ends_with([' ', '\t']) {
            fault("trailing space");
        }
        if line.contains('\t') && !name.ends_with(".sh") {
            fault("tab");
        }
        if let Some(word) = forbidden.iter().find(|word| line.contains(**word)) {
            fault(&format!("`{word}`"));
        }
        // A row of a table cannot be broken, and neither can markup or JSON in a raw string.
        let row = line.contains("// |") || line.contains("//! |") || line.contains("/// |");
        let raw = line.contains("r#\"") || line.starts_with("{\"");
        if name.ends_with(".rs") && !row && !raw && line.chars().count() > 100 {
            fault("longer than 100 columns");
        }
    }
    faults
}

/// Faults of Rust files.
fn code_faults(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if !text.starts_with("//!") {
        faults.push(format!("{name}: does not begin with `//!`, what lives here"));
    }
    let Some(module) = name.strip_prefix("crates/tenure/src/") else { return faults };
    if module.ends_with("tests.rs") {
        return faults;
    }
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    for (number, line) in code.lines().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        for (word, allowed) in RESTRICTED {
            let permitted = allowed.iter().any(|file| module.starts_with(file));
            if line.contains(word) && !permitted {
                faults.push(format!("{name}:{}: `{word}` does not belong here", number + 1));
            }
        }
    }
    faults.extend(direction_faults(name, module, code));
    faults.extend(cancel_faults(name, code));
    faults.extend(example_faults(name, code));
    faults
}

/// What only these files of the library may do.
const RESTRICTED: &[(&str, &[&str])] = &[
    ("println!", &[]),
    ("print!", &[]),
    ("process::exit", &[]),
    (".unwrap()", &[]),
    ("SystemTime", &["backends/"]),
    ("Instant::now", &["clock.rs", "backends/"]),
    ("tokio::spawn", &["backends/", "fence/http/layer.rs"]),
    ("home.spawn", &["acquire.rs", "keeper.rs", "janitor.rs", "blocking.rs", "home.rs"]),
];

/// The modules of the core from top to bottom. Imports only go down.
const ORDER: &[&str] = &[
    "blocking",
    "config",
    "client",
    "lock",
    "reentrant",
    "acquire",
    "guard",
    "lease",
    "keeper",
    "janitor",
    "shared",
    "held",
    "home",
    "backends",
    "layers",
    "backend",
    "finding",
    "observe",
    "options",
    "claim",
    "clock",
    "token",
    "key",
    "error",
];

/// Pairs that need each other: a lock holds its client, and a client makes locks; a key's error and
/// an error's detail; the janitor and the keeper are fields of what they work on.
const MUTUAL: &[(&str, &str)] = &[
    ("config", "blocking"),
    ("lock", "client"),
    ("reentrant", "lock"),
    ("shared", "keeper"),
    ("shared", "janitor"),
    ("error", "claim"),
    ("claim", "backend"),
];

fn direction_faults(name: &str, module: &str, code: &str) -> Vec<String> {
    let module = module.trim_end_matches(".rs");
    let rank = |module: &str| ORDER.iter().position(|known| *known == module);
    let Some(here) = rank(module) else { return Vec::new() };
    let uses = code.lines().filter_map(|line| line.strip_prefix("use crate::"));
    let uses = uses.filter_map(|rest| rest.split([':', ';', '{']).next());
    let upward = uses.filter(|other| rank(other).is_some_and(|there| there < here));
    let mutual = |other: &str| MUTUAL.contains(&(module, other));
    let upward = upward.filter(|other| !mutual(other) && !other.is_empty());
    upward.map(|other| format!("{name}: imports `{other}`, which stands above it")).collect()
}

/// Every public function that can be awaited says what dropping it does.
fn cancel_faults(name: &str, code: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut docs = String::new();
    let mut lines = code.lines().peekable();
    while let Some(line) = lines.next() {
        let line = line.trim_start();
        if line.starts_with("///") {
            docs.push_str(line);
            continue;
        }
        if line.starts_with("#[") {
            continue;
        }
        if line.starts_with("pub async fn") || line.starts_with("pub fn") {
            let mut signature = line.to_owned();
            while !signature.contains(['{', ';']) {
                let Some(next) = lines.next() else { break };
                signature.push_str(next);
            }
            let awaited = signature.contains("async fn") || signature.contains("-> impl Future");
            if awaited && !docs.contains("# Cancel safety") {
                faults.push(format!("{name}: no `# Cancel safety` section: {line}"));
            }
        }
        docs.clear();
    }
    faults
}

/// Every public type has an example.
fn example_faults(name: &str, code: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut docs = String::new();
    for line in code.lines() {
        if line.starts_with("///") {
            docs.push_str(line);
            continue;
        }
        if line.starts_with("#[") {
            continue;
        }
        let types = ["pub struct ", "pub enum ", "pub trait "];
        if types.iter().any(|word| line.starts_with(word)) && !docs.contains("```") {
            faults.push(format!("{name}: no example: {line}"));
        }
        docs.clear();
    }
    faults
}

/// Every backend has its page, its feature and its fixture.
fn backend_faults(root: &Path) -> Vec<String> {
    let table = read(&root.join("crates/tenure/src/backends/mod.rs"));
    let fixtures = read(&root.join("crates/tenure-conformance/src/fixtures.rs"));
    let features = features();
    let mut faults = Vec::new();
    let rows = table.split("\nbackends! {").nth(1).unwrap_or_default();
    let rows = rows.split("\n}").next().unwrap_or_default();
    let rows: String = rows.lines().filter(|line| !line.contains("//")).collect();
    for row in rows.split(';').filter(|row| !row.trim().is_empty()) {
        let mut words = row.split_whitespace();
        let (Some(module), Some(feature)) = (words.next(), words.next()) else { continue };
        let feature = feature.trim_matches('"');
        if !root.join(format!("docs/backends/{module}.md")).exists() {
            faults.push(format!("backend `{module}` has no page docs/backends/{module}.md"));
        }
        if !features.iter().any(|known| known == feature) {
            faults.push(format!("backend `{module}` has no cargo feature `{feature}`"));
        }
        if !fixtures.contains(&format!("\"{module}")) {
            faults.push(format!("backend `{module}` has no fixture in tenure-conformance"));
        }
    }
    let manifest = read(&root.join("crates/tenure/Cargo.toml"));
    if manifest.contains("?/") {
        faults.push("crates/tenure/Cargo.toml: a weak feature (`?/`)".to_owned());
    }
    faults
}

/// Every path that ARCHITECTURE.md names exists.
fn map_faults(root: &Path) -> Vec<String> {
    let map = read(&root.join("ARCHITECTURE.md"));
    let named = map.split('`').skip(1).step_by(2);
    let paths = named.filter(|name| name.contains('/') && !name.contains([' ', ':', '*', '<']));
    let missing = paths.filter(|path| !root.join(path).exists());
    missing.map(|path| format!("ARCHITECTURE.md names `{path}`, which is not there")).collect()
}

/// The files that people write.
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

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_is_tidy() {
        let faults = look(&root());
        assert!(faults.is_empty(), "{faults:#?}");
    }

    #[test]
    fn what_is_wrong_is_found() {
        let long = format!("//! x\n// {}\n", "x".repeat(100));
        for (name, text, part) in [
            ("a.rs", "fn f() {}\n", "does not begin"),
            ("a.rs", long.as_str(), "100 columns"),
            ("a.rs", "//! x \n", "trailing space"),
            ("crates/tenure/src/x.rs", "//! x\nfn f() { println!() }\n", "`println!`"),
            ("crates/tenure/src/x.rs", "//! x\nfn f() { a.unwrap() }\n", "`.unwrap()`"),
            ("crates/tenure/src/guard.rs", "//! x\nuse crate::acquire::x;\n", "stands above"),
            ("crates/tenure/src/x.rs", "//! x\npub async fn f() {}\n", "Cancel safety"),
            ("crates/tenure/src/x.rs", "//! x\n/// Y.\npub struct Y;\n", "no example"),
            ("crates/tenure/src/x.rs", "//! x\npub fn f()\n  -> impl Future {}\n", "Cancel safety"),
        ] {
            let mut faults = text_faults(name, text);
            faults.extend(code_faults(name, text));
            assert!(faults.iter().any(|fault| fault.contains(part)), "{part}: {faults:?}");
        }
    }

    #[test]
    fn the_features_are_read_from_the_manifest() {
        assert!(features().contains(&"memory".to_owned()));
        assert!(!features().contains(&"default".to_owned()));
    }
}
