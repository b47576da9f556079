//! What the pages say about the code: tables of servers and features are those of the manifest, and
//! every Rust snippet is compiled by a test.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Source, backends, features, quoted, read};

pub(super) fn faults(root: &Path, sources: &[Source]) -> Vec<String> {
    let library = read(&root.join("crates/tenure/src/lib.rs"));
    let header = library.lines().filter_map(|line| line.strip_prefix("//!"));
    let header: String = header.map(|line| format!("{}\n", line.trim())).collect();
    let fronts = [("README.md", read(&root.join("README.md"))), ("lib.rs", header)];
    let mut faults = Vec::new();
    for (name, text) in &fronts {
        let known: BTreeSet<String> = features().into_iter().collect();
        let listed = first_cells(text, "| feature |");
        faults.extend(differences(name, "the table of features", &known, &listed));
        let schemes = backends(root).into_iter().flat_map(|row| row.schemes);
        // A second name of the same scheme need not be in a table.
        let known = schemes.filter(|scheme| scheme != "postgresql").collect();
        let listed = first_cells(text, "| URL |");
        let listed = listed.iter().map(|url| url.trim_end_matches("//").trim_end_matches(':'));
        let listed = listed.map(str::to_owned).collect();
        faults.extend(differences(name, "the table of servers", &known, &listed));
    }
    faults.extend(sources.iter().flat_map(|page| snippet_faults(page, sources)));
    faults
}

/// What stands in backquotes in the first column of the table with this head.
fn first_cells(text: &str, head: &str) -> BTreeSet<String> {
    let lines = text.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let rows = lines.take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    cells.flat_map(quoted).map(str::to_owned).collect()
}

fn differences(
    page: &str,
    what: &str,
    known: &BTreeSet<String>,
    listed: &BTreeSet<String>,
) -> Vec<String> {
    let missing = known.difference(listed).map(|name| format!("{page}: {what} has no `{name}`"));
    let unknown = listed.difference(known);
    let unknown = unknown.map(|name| format!("{page}: {what} has `{name}`, which does not exist"));
    missing.chain(unknown).collect()
}

/// Snippets of Rust are doc tests of some crate, and none is passed over.
fn snippet_faults(page: &Source, sources: &[Source]) -> Vec<String> {
    if !page.name.ends_with(".md") {
        return Vec::new();
    }
    let blocks = page.text.lines().filter_map(|line| line.strip_prefix("```rust"));
    let rest: Vec<&str> = blocks.collect();
    let mut faults = Vec::new();
    if rest.iter().any(|info| info.contains("ignore")) {
        faults.push(format!("{}: a snippet of Rust that is not compiled", page.name));
    }
    let included = format!("/{}\")]", page.name);
    let readme = page.name.starts_with("crates/").then_some("include_str!(\"../README.md\")");
    let tested = |source: &Source| {
        let text = &source.text;
        source.name.ends_with(".rs")
            && (text.contains(&included) || readme.is_some_and(|line| text.contains(line)))
    };
    if !rest.is_empty() && !sources.iter().any(tested) {
        faults.push(format!("{}: no doc test includes its snippets of Rust", page.name));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_lack_or_invent_a_feature_are_found() {
        let table = "| feature | x |\n|---|---|\n| `memory` | a |\n| `telepathy` | b |\n\ntext `c`";
        let listed = first_cells(table, "| feature |");
        assert_eq!(listed.len(), 2, "{listed:?}");
        let known = features().into_iter().collect();
        let faults = differences("README.md", "the table", &known, &listed);
        assert!(faults.iter().any(|fault| fault.contains("has no `redis`")), "{faults:?}");
        assert!(faults.iter().any(|fault| fault.contains("`telepathy`")), "{faults:?}");
    }

    #[test]
    fn snippets_that_are_not_compiled_are_found() {
        let page = |text: &str| Source { name: "docs/new.md".into(), text: text.into() };
        for text in ["```rust\nfn f() {}\n```\n", "```rust,ignore\nx\n```\n"] {
            assert!(!snippet_faults(&page(text), &[]).is_empty(), "{text}");
        }
        assert!(snippet_faults(&page("```console\n$ ls\n```\n"), &[]).is_empty());
    }
}
