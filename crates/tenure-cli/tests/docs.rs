//! The flags of docs/cli.md are those of the program. `documents` runs its examples.

#![cfg(all(feature = "lab", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use std::collections::BTreeSet;

use support::*;

const PAGE: &str = include_str!("../../../docs/cli.md");

#[test]
fn every_flag_of_the_page_is_a_flag_of_the_program() {
    let mut help = String::new();
    for verb in ["run", "hold", "elect", "ls", "show", "evict", "wait", "doctor", "lab"] {
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
    let of_cargo = ["--no-default-features", "--path"];
    for flag in flags.into_iter().filter(|flag| !of_cargo.contains(flag)) {
        assert!(help.contains(flag), "the page has {flag}, the program has not");
    }
}
