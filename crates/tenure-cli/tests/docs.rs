//! The examples and flags of docs/cli.md are those of the program.

#![cfg(all(feature = "lab", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use support::*;

const PAGE: &str = include_str!("../../../docs/cli.md");

/// What usage errors begin with: an example that is not understood.
const NOT_UNDERSTOOD: [&str; 7] = [
    "there is no flag",
    "there is no verb",
    "missing: ",
    "the command is missing",
    "is no value for",
    "one argument too many",
    "cannot be used with",
];

/// The lines behind `$`, without comments. Those that need a server, root or an empty environment
/// are left out, and those that are not complete.
fn examples() -> Vec<&'static str> {
    let mut lines = Vec::new();
    for block in PAGE.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap();
        let commands = block.lines().filter_map(|line| line.strip_prefix("$ "));
        // Two commands may stand side by side.
        lines.extend(commands.flat_map(|line| line.split("  $ ")));
    }
    let without_comment = lines.iter().map(|line| line.split(" # ").next().unwrap().trim());
    let needs_more =
        |line: &&str| ["sudo", "env -i", "tenure lab", "…"].iter().any(|part| line.contains(part));
    without_comment.filter(|line| !needs_more(line)).collect()
}

fn write_program(path: &Path) {
    std::fs::write(path, "#!/bin/sh\ncat >/dev/null\n").unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn the_examples_of_the_page_run() {
    let store = Store::new();
    let folder = store.folder.path();
    for name in ["report.sh", "deploy.sh", "build", "push", "psql", "mysql", "jq", "man"] {
        write_program(&folder.join(name));
    }
    let program = Path::new(env!("CARGO_BIN_EXE_tenure")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{}:{path}", folder.display(), program.display());
    let examples = examples();
    assert!(examples.len() > 15, "{examples:?}");
    for line in examples {
        // The input has ended, so that `hold` ends.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(writer);
        // A kept lock would keep the next example waiting.
        let line = line.replace("--at-least 1m", "--at-least 1ms");
        let mut bash = Command::new("bash");
        bash.args(["-c", &line]).stdin(reader).current_dir(folder);
        bash.env("PATH", &path).env("TENURE_URL", store.url()).env_remove("TENURE_REACH");
        let output = output(&mut bash);
        let messages = text(&output.stderr);
        assert_ne!(code(&output), 127, "{line}: {messages}");
        let wrong = NOT_UNDERSTOOD.iter().find(|part| messages.contains(*part));
        assert_eq!(wrong, None, "{line}: {messages}");
    }
}

#[test]
fn every_flag_of_the_page_is_a_flag_of_the_program() {
    let mut help = String::new();
    for verb in ["run", "hold", "ls", "show", "evict", "wait", "doctor", "lab"] {
        help += &text(&output(&mut tenure(["help", verb])).stdout);
    }
    for verb in ["run", "matrix", "replay", "simulate"] {
        help += &text(&output(&mut tenure(["lab", verb, "--help"])).stdout);
    }
    let is_part = |c: char| c.is_ascii_lowercase() || c == '-';
    let flags: BTreeSet<&str> = PAGE
        .match_indices("--")
        .map(|(at, _)| PAGE[at..].split(|c| !is_part(c)).next().unwrap())
        .filter(|flag| flag.trim_matches('-').len() > 1 && !flag.starts_with("---"))
        .collect();
    assert!(flags.len() > 15, "{flags:?}");
    let of_cargo = ["--no-default-features"];
    for flag in flags.into_iter().filter(|flag| !of_cargo.contains(flag)) {
        assert!(help.contains(flag), "the page has {flag}, the program has not");
    }
}
