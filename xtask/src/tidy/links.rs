//! The pages lead somewhere: every relative link resolves, with its anchor, and every page is in
//! the table of contents.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use super::{Source, read};

/// The table of contents of all pages.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";
/// Pages that are not in `docs`.
pub(crate) const FRONT: &[&str] = &[
    "README.md",
    "README.zh-CN.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
];

pub(super) fn faults(root: &Path, sources: &[Source]) -> Vec<String> {
    let pages: Vec<&Source> = sources.iter().filter(|page| page.name.ends_with(".md")).collect();
    let mut faults: Vec<String> =
        pages.iter().flat_map(|page| link_faults(root, &page.name, &page.text)).collect();
    let summary = read(&root.join(SUMMARY));
    let listed: Vec<PathBuf> =
        links(&summary).map(|link| resolve(SUMMARY, target(link).0)).collect();
    let belongs = |name: &str| name.starts_with("docs/") && name != SUMMARY;
    for page in pages.iter().filter(|page| belongs(&page.name) || FRONT.contains(&&*page.name)) {
        if !listed.contains(&PathBuf::from(&page.name)) {
            faults.push(format!("{SUMMARY}: {} is not listed", page.name));
        }
    }
    faults
}

fn link_faults(root: &Path, name: &str, text: &str) -> Vec<String> {
    let mut known: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    let mut faults = Vec::new();
    for link in links(text).filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
        let (path, anchor) = target(link);
        let path = if path.is_empty() { PathBuf::from(name) } else { resolve(name, path) };
        if !root.join(&path).exists() {
            faults.push(format!("{name}: the link `{link}` leads nowhere"));
            continue;
        }
        let Some(anchor) = anchor else { continue };
        let anchors = known.entry(path).or_insert_with_key(|path| match path.to_str() {
            Some(path) if path == name => anchors(text),
            _ => anchors(&read(&root.join(path))),
        });
        if !anchors.iter().any(|known| known == anchor) {
            faults.push(format!("{name}: the link `{link}` names no heading there"));
        }
    }
    faults
}

/// The targets of links and pictures, outside of code.
pub(crate) fn links(text: &str) -> impl Iterator<Item = &str> {
    prose(text).flat_map(|line| {
        let parts = line.split("](").skip(1);
        parts.filter_map(|part| part.split(')').next()).filter(|link| !link.contains(' '))
    })
}

/// A link's path and anchor.
pub(crate) fn target(link: &str) -> (&str, Option<&str>) {
    match link.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (link, None),
    }
}

/// The path from the root that a link on this page names.
pub(crate) fn resolve(page: &str, link: &str) -> PathBuf {
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    let mut path = PathBuf::new();
    for part in folder.join(link).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

/// The lines that are not in a block of code.
pub(super) fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let anchors = headings.map(|heading| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    });
    anchors.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_are_found() {
        let root = crate::tidy::root();
        for (text, dead) in [
            ("[a](docs/cli.md)", 0),
            ("[a](docs/cli.md#exit-codes)", 0),
            ("# Two words\n[a](#two-words) [b](https://example.com/x)", 0),
            ("```console\n$ [a](nowhere.md)\n```", 0),
            ("[a](nowhere.md)", 1),
            ("[a](docs/cli.md#no-such-heading)", 1),
            ("![a](docs/no.svg) [b](../outside.md)", 2),
        ] {
            assert_eq!(link_faults(&root, "README.md", text).len(), dead, "{text}");
        }
    }
}
