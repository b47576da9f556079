//! One anatomy for every backend, no scattered types, no vague names, no type name in two meanings.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{Source, backends};

/// The files that the folder of every backend has, each of them as a file or a folder.
const ROOMS: &[&str] = &[
    "config",
    "connection",
    "layout",
    "acquire",
    "renew",
    "release",
    "wait",
    "admin",
    "doctor",
    "error",
];
/// Backends that are too small for one file for each job.
const WITHOUT_ROOMS: &[&str] = &["memory"];
/// Rooms that a backend does not have, because another one does that job for it.
const WITHOUT: &[(&str, &[&str])] = &[("redlock", &["connection", "layout", "error"])];
/// The modes of the SQL backends are folders with these rooms.
const MODES: &[&str] = &["lease", "session", "row"];
const MODE_ROOMS: &[&str] = &["acquire", "renew", "release"];
const SQL: &[&str] = &["mysql", "postgres"];

/// Names of modules that do not tell what is in them.
const VAGUE: &[&str] = &[
    "ask", "answer", "beacon", "bell", "bells", "board", "book", "change", "common", "culprit",
    "desk", "finder", "front", "helper", "helpers", "hints", "home", "keep", "leave", "looks",
    "misc", "own", "pair", "part", "people", "person", "place", "post", "pulse", "record", "rig",
    "shared", "single", "stuff", "table", "talk", "util", "utils", "verbs", "view", "way", "work",
];

/// Type names that stand for one role in several places, at most fifteen: conditions, tables of
/// fences, and the parts that backends have in common.
const CONVENTIONAL: &[&str] = &[
    "Client",
    "Condition",
    "Config",
    "Connection",
    "Context",
    "Layout",
    "LockMode",
    "PushRouter",
    "QueueEntry",
    "RowLocks",
    "Session",
    "State",
    "Table",
];

pub(super) fn faults(root: &Path, sources: &[Source]) -> Vec<String> {
    let mut faults = backend_faults(root);
    faults.extend(module_faults(sources));
    faults.extend(impl_faults(sources));
    faults.extend(type_faults(sources));
    faults
}

/// Every backend has the rooms, and its `mod.rs` lists each of its files.
fn backend_faults(root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for backend in backends(root) {
        let name = &backend.module;
        let folder = root.join("crates/tenure/src/backends").join(name);
        if WITHOUT_ROOMS.contains(&name.as_str()) {
            faults.extend(unlisted_files(&folder, name));
            continue;
        }
        let without = WITHOUT.iter().find(|(backend, _)| backend == name);
        let without = without.map_or(&[][..], |(_, rooms)| *rooms);
        for room in ROOMS.iter().filter(|room| !without.contains(room)) {
            if !has_room(&folder, room) {
                faults.push(format!("backend `{name}` has no `{room}.rs`"));
            }
        }
        if SQL.contains(&name.as_str()) {
            for mode in MODES {
                for room in MODE_ROOMS.iter().filter(|room| !has_room(&folder.join(mode), room)) {
                    faults.push(format!("mode `{mode}` of `{name}` has no `{room}.rs`"));
                }
            }
        }
        faults.extend(unlisted_files(&folder, name));
    }
    faults
}

fn has_room(folder: &Path, room: &str) -> bool {
    folder.join(format!("{room}.rs")).exists() || folder.join(room).join("mod.rs").exists()
}

/// The header of `mod.rs` is the map of the folder.
fn unlisted_files(folder: &Path, backend: &str) -> Vec<String> {
    let text = super::read(&folder.join("mod.rs"));
    let header: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let names = names.map(|name| name.trim_end_matches(".rs").to_owned());
    let names: BTreeSet<String> = names.filter(|name| name != "mod" && name != "tests").collect();
    let unlisted = names.into_iter().filter(|name| {
        let listed = [format!("`{name}.rs`"), format!("`{name}/`"), format!("`{name}`")];
        !listed.iter().any(|listed| header.contains(listed))
    });
    unlisted
        .map(|name| format!("backends/{backend}/mod.rs: its header does not list `{name}`"))
        .collect()
}

/// No module has a name that does not tell its job.
fn module_faults(sources: &[Source]) -> Vec<String> {
    let sources = sources.iter().filter(|source| source.name.ends_with(".rs"));
    let vague = sources.filter(|source| {
        let path = source.name.trim_end_matches(".rs").trim_end_matches("/mod");
        VAGUE.contains(&path.rsplit('/').next().unwrap_or_default())
    });
    vague
        .map(|source| format!("{}: a module by this name does not tell its job", source.name))
        .collect()
}

/// The methods of one type stand in at most two files.
fn impl_faults(sources: &[Source]) -> Vec<String> {
    let mut places: BTreeMap<(String, String), BTreeSet<&str>> = BTreeMap::new();
    for source in library(sources) {
        for line in source.text.lines() {
            let Some(name) = inherent_impl(line) else { continue };
            let key = (area(&source.name), name.to_owned());
            places.entry(key).or_default().insert(&source.name);
        }
    }
    let scattered = places.into_iter().filter(|(_, files)| files.len() > 2);
    let fault = |((area, name), files): ((String, String), BTreeSet<&str>)| {
        let files: Vec<&str> = files.into_iter().collect();
        format!(
            "{area}: the methods of `{name}` are in {} files: {}",
            files.len(),
            files.join(", ")
        )
    };
    scattered.map(fault).collect()
}

/// The type of an `impl` without a trait that begins in this line.
fn inherent_impl(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    if line.contains(" for ") || !(rest.starts_with(' ') || rest.starts_with('<')) {
        return None;
    }
    let name = if rest.starts_with('<') { after_generics(rest)? } else { rest };
    let name = name.trim_start();
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    (end > 0).then(|| &name[..end])
}

/// What follows the generics at the beginning of a text.
fn after_generics(text: &str) -> Option<&str> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        depth += i32::from(c == '<') - i32::from(c == '>');
        if depth == 0 {
            return Some(&text[at + 1..]);
        }
    }
    None
}

/// No type name of the library stands for two things, except the conventional ones.
fn type_faults(sources: &[Source]) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    // Each handle of `blocking` has the name of the one that it is for.
    let is_handle = |source: &&Source| source.name.starts_with("crates/tenure/src/blocking");
    for source in library(sources).filter(|source| !is_handle(source)) {
        let code = source.text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in code.lines() {
            if let Some(name) = type_name(line) {
                places.entry(name).or_default().push(&source.name);
            }
        }
    }
    let twice =
        places.into_iter().filter(|(name, files)| files.len() > 1 && !CONVENTIONAL.contains(name));
    twice
        .map(|(name, files)| {
            format!("type `{name}` is {} types: {}", files.len(), files.join(", "))
        })
        .collect()
}

fn type_name(line: &str) -> Option<&str> {
    let mut rest = line;
    for word in ["pub(crate) ", "pub(super) ", "pub "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let kinds = ["struct ", "enum ", "trait "];
    let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// The files of the library, without its tests.
fn library(sources: &[Source]) -> impl Iterator<Item = &Source> {
    sources.iter().filter(|source| {
        let name = &source.name;
        name.starts_with("crates/tenure/src/")
            && name.ends_with(".rs")
            && !name.ends_with("tests.rs")
    })
}

/// A backend, or the top-level module.
fn area(name: &str) -> String {
    let path = name.trim_start_matches("crates/tenure/src/");
    let mut parts = path.split('/');
    let first = parts.next().unwrap_or_default();
    match (first, parts.next()) {
        ("backends", Some(backend)) => format!("backends/{backend}"),
        _ => first.to_owned(),
    }
}
