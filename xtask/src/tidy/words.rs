//! Words that the glossary retired, so that they do not come back. `docs/glossary.md` has the words
//! that are used instead.

/// Words in code and prose, with what to say instead. A part of an identifier counts as a word.
const RETIRED: &[(&str, &str)] = &[
    ("anew", "again, a new one"),
    ("anybody", "the role: holder, waiter, client, operator"),
    ("beacon", "liveness file"),
    ("bell", "wake-up"),
    ("bury", "tombstone, remove"),
    ("buries", "tombstone, removes"),
    ("culprit", "the process or statement itself"),
    ("desk", "state, registry"),
    ("doubt", "unknown outcome"),
    ("doubtful", "unconfirmed"),
    ("examine", "check, doctor"),
    ("grave", "tombstone"),
    ("grip", "hold, guard"),
    ("janitor", "releaser"),
    ("keeper", "renewer; of the program: supervisor"),
    ("mailbox", "push router, subscription"),
    ("nobody", "the role: no client, no waiter"),
    ("people", "operators, users"),
    ("rang", "woke"),
    ("rung", "woken"),
    ("somebody", "the role: holder, waiter, client, operator"),
    ("stranger", "foreign client"),
    ("whoever", "the role: holder, waiter, client, operator"),
    ("wish", "command, waiter"),
    ("withdraw", "cancel"),
    ("withdrawn", "cancelled"),
];

/// Phrases, in lower case.
const PHRASES: &[(&str, &str)] = &[
    ("asking twice is asking once", "requests are idempotent"),
    ("give back", "release"),
    ("given back", "released"),
    ("gives the lock back", "releases the lock"),
    ("giving back", "releasing"),
    ("hand-over", "handoff"),
    ("handed over", "passed on (a handoff)"),
    ("let go of the lock", "release the lock"),
    ("odd answer", "unexpected response"),
];

/// Files in which a word is a name that is stored or sent, or is quoted.
const ALLOWED: &[(&str, &str)] = &[
    // Columns of MySQL's tables, and the value of the URL's option `wake`.
    ("crates/tenure/src/backends/mysql/", "bell"),
    ("crates/tenure-conformance/tests/mysql/", "bell"),
    ("docs/backends/mysql.md", "bell"),
    // The names of wake sockets in the store's folder.
    ("crates/tenure/src/backends/sqlite/liveness.rs", "bell"),
    ("crates/tenure/tests/sqlite/hostile.rs", "bell"),
    ("docs/backends/sqlite.md", "bell"),
    // The reason in the JSON of `tenure run`.
    ("crates/tenure-cli/src/runner/reporter.rs", "doubt"),
    ("docs/cli.md", "doubt"),
    // The name of a figure in the lab's histories.
    ("crates/tenure-lab/src/scenarios/herd.rs", "hand-over"),
    ("docs/lab.md", "hand-over"),
    // The user of that name.
    ("crates/tenure-servers/src/servers/postgres.rs", "nobody"),
    ("docs/servers.md", "nobody"),
];

pub(super) fn faults(name: &str, text: &str) -> Vec<String> {
    let exempt =
        name == "CHANGELOG.md" || name.ends_with(".toml") || name.starts_with("xtask/src/tidy/");
    if exempt {
        return Vec::new();
    }
    let allowed = |word: &str| {
        ALLOWED.iter().any(|(file, allowed)| name.starts_with(file) && *allowed == word)
    };
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let parts = word_parts(line);
        let mut fault = |word: &str, instead: &str| {
            faults.push(format!("{name}:{}: `{word}` is retired; say: {instead}", number + 1));
        };
        for (word, instead) in RETIRED {
            let is_it = |part: &String| part == word || part.strip_suffix('s') == Some(word);
            if parts.iter().any(is_it) && !allowed(word) {
                fault(word, instead);
            }
        }
        let lower = line.to_lowercase();
        for (phrase, instead) in PHRASES {
            if lower.contains(phrase) && !allowed(phrase) {
                fault(phrase, instead);
            }
        }
    }
    faults
}

/// The words of a line in lower case; identifiers come apart at `_` and at capital letters.
fn word_parts(line: &str) -> Vec<String> {
    let line = line.replace("ZooKeeper", "zookeeper");
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut last_lower = false;
    for c in line.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && last_lower) {
            parts.push(std::mem::take(&mut part));
        }
        if c.is_alphanumeric() {
            part.extend(c.to_lowercase());
        }
        last_lower = c.is_lowercase();
    }
    parts.push(part);
    parts.retain(|part| !part.is_empty());
    parts
}
