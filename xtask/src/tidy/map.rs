//! Documents that name code: the front pages list what there is, and every path exists.

use std::path::Path;

use super::{Source, backends, features, quoted, read};

/// The backend by which the steps of "A new backend" are checked: its name is no other word.
const SAMPLE: &str = "consul";
/// What need not be listed there: files that change by themselves, history, and the tests that are
/// of one server only.
const UNLISTED: &[&str] = &[
    "CHANGELOG.md",
    "docs/decisions/",
    "docs/glossary.md",
    "docs/migrate.md",
    "docs/SUMMARY.md",
    "xtask/src/tidy/",
];

pub(super) fn faults(root: &Path, sources: &[Source]) -> Vec<String> {
    let mut faults = path_faults(root);
    faults.extend(module_faults(root));
    faults.extend(front_page_faults(root));
    faults.extend(new_backend_faults(root, sources));
    faults
}

/// Every path that ARCHITECTURE.md names exists.
fn path_faults(root: &Path) -> Vec<String> {
    let map = read(&root.join("ARCHITECTURE.md"));
    let paths =
        quoted(&map).filter(|name| name.contains('/') && !name.contains([' ', ':', '*', '<']));
    let missing = paths.filter(|path| !root.join(path).exists());
    missing.map(|path| format!("ARCHITECTURE.md names `{path}`, which is not there")).collect()
}

/// Every top-level module of the library is on the map.
fn module_faults(root: &Path) -> Vec<String> {
    let map = read(&root.join("ARCHITECTURE.md"));
    let library = read(&root.join("crates/tenure/src/lib.rs"));
    let modules = library.lines().filter_map(|line| {
        let line = line.strip_prefix("pub ").unwrap_or(line);
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    let unlisted = modules.filter(|module| {
        let file = format!("`crates/tenure/src/{module}.rs`");
        let folder = format!("`crates/tenure/src/{module}`");
        !map.contains(&file) && !map.contains(&folder)
    });
    unlisted
        .map(|module| format!("ARCHITECTURE.md: the module `{module}` is not on the map"))
        .collect()
}

/// Every backend is in the tables of the front pages, and every feature in that of the crate.
fn front_page_faults(root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    let library = read(&root.join("crates/tenure/src/lib.rs"));
    let header: String = library.lines().filter(|line| line.starts_with("//!")).collect();
    let readme = read(&root.join("README.md"));
    let guarantees = read(&root.join("docs/guarantees.md"));
    let architecture = read(&root.join("ARCHITECTURE.md"));
    let fixtures = read(&root.join("crates/tenure-conformance/src/fixtures.rs"));
    for row in backends(root) {
        let module = &row.module;
        let page = format!("docs/backends/{module}.md");
        let mut needs = |holds: bool, what: String| {
            if !holds {
                faults.push(format!("backend `{module}`: {what}"));
            }
        };
        needs(root.join(&page).exists(), format!("has no page {page}"));
        needs(readme.contains(&page), format!("README.md does not link {page}"));
        needs(
            guarantees.contains(&format!("\n### {module}\n")),
            "has no section in docs/guarantees.md".into(),
        );
        needs(architecture.contains(&format!("`{module}`")), "is not in ARCHITECTURE.md".into());
        needs(
            fixtures.contains(&format!("\"{module}")),
            "has no fixture in tenure-conformance".into(),
        );
        for scheme in &row.schemes {
            let written = |text: &str| text.contains(&format!("`{scheme}:"));
            // A second name of the same scheme need not be in a table.
            let alias = scheme == "postgresql";
            needs(alias || written(&header), format!("the table in lib.rs has no `{scheme}:`"));
            needs(alias || written(&readme), format!("the table in README.md has no `{scheme}:`"));
        }
    }
    for feature in features() {
        if !header.contains(&format!("`{feature}`")) {
            faults.push(format!("lib.rs: its header does not name the feature `{feature}`"));
        }
    }
    faults
}

/// The steps of "A new backend" name every file that knows the backends there are, and only such.
fn new_backend_faults(root: &Path, sources: &[Source]) -> Vec<String> {
    let map = read(&root.join("ARCHITECTURE.md"));
    let section = map.split("\n## A new backend\n").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let steps: Vec<&str> = quoted(section).filter(|name| root.join(name).exists()).collect();
    let knows = |source: &&Source| source.text.to_lowercase().contains(SAMPLE);
    let own =
        |name: &str| name.contains(SAMPLE) || UNLISTED.iter().any(|path| name.starts_with(path));
    let mut faults: Vec<String> = sources
        .iter()
        .filter(knows)
        .filter(|source| !own(&source.name))
        .filter(|source| !steps.iter().any(|step| Path::new(&source.name).starts_with(step)))
        .map(|source| format!("ARCHITECTURE.md, A new backend: no step names {}", source.name))
        .collect();
    for step in steps {
        let mut below = sources.iter().filter(|source| Path::new(&source.name).starts_with(step));
        if !below.any(|source| knows(&source) || source.name.contains(SAMPLE)) {
            faults.push(format!("ARCHITECTURE.md, A new backend: `{step}` knows no backend"));
        }
    }
    faults
}
