//! What a Rust file can get wrong: no header, a call in the wrong place, an import that goes up, a
//! public item without the sections that every one has.

/// What only these files of the library may do.
const RESTRICTED: &[(&str, &[&str])] = &[
    ("println!", &[]),
    ("print!", &[]),
    ("process::exit", &[]),
    (".unwrap()", &[]),
    ("SystemTime", &["backends/"]),
    ("Instant::now", &["support/clock.rs", "support/reconnect.rs", "backends/"]),
    ("tokio::spawn", &["backends/", "lazy.rs", "support/reconnect.rs", "fence/http/layer.rs"]),
    ("executor.spawn", &["engine/", "blocking.rs"]),
];

/// The modules of the library from top to bottom. Imports only go down.
const ORDER: &[&str] = &[
    "blocking",
    "config",
    "client",
    "election",
    "lock_set",
    "semaphore",
    "lock",
    "reentrant",
    "hosted",
    "lazy",
    "guard",
    "lease",
    "engine",
    "backends",
    "layers",
    "event",
    "backend",
    "finding",
    "support",
    "token",
    "key",
    "error",
];

/// Pairs that need each other: a lock holds its client, and a client makes locks; the engine makes
/// guards, and a guard is a handle of the engine; an error's detail, and what fails with an error;
/// a backend that a caller opens is hosted on a thread of its own.
const MUTUAL: &[(&str, &str)] = &[
    ("config", "blocking"),
    ("lock", "client"),
    ("semaphore", "client"),
    ("lock_set", "client"),
    ("election", "client"),
    ("reentrant", "lock"),
    ("engine", "guard"),
    ("engine", "lease"),
    ("error", "backend"),
    ("backends", "hosted"),
];

/// Faults of one Rust file.
pub(super) fn faults(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if !text.starts_with("//!") {
        faults.push(format!("{name}: does not begin with `//!`, what lives here"));
    }
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    faults.extend(style_faults(name, code));
    let Some(module) = name.strip_prefix("crates/tenure/src/") else { return faults };
    if module.ends_with("tests.rs") {
        return faults;
    }
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

/// Habits that make a reader stumble.
fn style_faults(name: &str, code: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut body_began = false;
    for (number, line) in code.lines().enumerate() {
        let mut fault = |what: &str| faults.push(format!("{name}:{}: {what}", number + 1));
        let trimmed = line.trim_start();
        if trimmed.contains("true => ")
            && !trimmed.contains("Some(true)")
            && is_bool_match(code, number)
        {
            fault("a `match` on a bool: write `if` and `else`");
        }
        if trimmed.starts_with("/// The same") {
            fault("`The same …` needs the item before it: say what this one does");
        }
        body_began |= ["fn ", "pub fn ", "pub(crate) fn ", "impl ", "impl<", "async fn "]
            .iter()
            .any(|start| line.starts_with(start));
        let constant =
            ["const ", "pub const ", "pub(crate) const ", "pub(super) const ", "static "];
        let is_constant = constant.iter().any(|start| line.starts_with(start));
        if body_began && is_constant && !line.contains("const fn") {
            fault("a constant below the code: constants stand at the top of a file");
        }
    }
    faults
}

/// Whether the arm in this line belongs to a `match` whose arms are just `true` and `false`.
fn is_bool_match(code: &str, number: usize) -> bool {
    let arm =
        |line: &str| line.trim_start().starts_with("false => ") || line.contains(", false => ");
    let line = code.lines().nth(number).unwrap_or_default();
    let starts = line.trim_start().starts_with("true => ") || line.contains("{ true => ");
    starts && code.lines().skip(number).take(6).any(arm)
}

fn direction_faults(name: &str, module: &str, code: &str) -> Vec<String> {
    let module = module.trim_end_matches(".rs").split('/').next().unwrap_or_default();
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
