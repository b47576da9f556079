//! `tenure lab list`: the scenarios and the locks; and what is expected of each lock in a scenario.

use tenure_lab::scenarios::{SCENARIOS, Scenario};
use tenure_lab::schemes::LOCKS;
use tenure_lab::verdict::Expected;

use super::unknown;
use crate::exit;
use crate::failure::Failure;
use crate::output;

/// The columns of a line.
const COLUMNS: usize = 100;

/// List the scenarios and the locks; with a scenario, what is expected of each lock
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Print what is expected of each lock in this scenario
    scenario: Option<String>,

    /// Print JSON: all scenarios and locks, with the expected verdicts
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &List) -> Result<u8, Failure> {
    if args.json {
        output::print_json(&as_json())?;
        return Ok(exit::DONE);
    }
    let text = match &args.scenario {
        Some(name) => expectations(Scenario::named(name).map_err(|error| unknown(&error))?),
        None => all(),
    };
    output::print(&text)?;
    Ok(exit::DONE)
}

fn all() -> String {
    let mut text = String::from("Scenarios\n\n");
    for scenario in SCENARIOS {
        text += &format!("  {:16} {}\n", scenario.name, scenario.about);
    }
    text += "\nLocks\n\n";
    for lock in LOCKS {
        text += &format!("  {:19} {}\n", lock.name, lock.about);
        if !lock.flaw.is_empty() {
            text += &format!("  {:19} wrong: {}\n", "", lock.flaw);
        }
    }
    text += "\nWhat is expected of each lock: `tenure lab list SCENARIO`\n";
    text
}

/// The locks by what is expected of them, in words.
fn expectations(scenario: &Scenario) -> String {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for lock in LOCKS {
        let expected = match scenario.expected(lock) {
            Ok(expected) => words(expected),
            Err(reason) => format!("does not happen: {reason}"),
        };
        match groups.iter_mut().find(|(known, _)| *known == expected) {
            Some((_, locks)) => locks.push(lock.name),
            None => groups.push((expected, vec![lock.name])),
        }
    }
    let mut text = format!("{}: {}\n", scenario.name, scenario.about);
    for (expected, locks) in groups {
        text += &format!("\n  {expected}\n");
        let mut line = String::from("   ");
        for lock in locks {
            if line.len() + lock.len() >= COLUMNS {
                text += &format!("{line}\n");
                line = String::from("   ");
            }
            line += &format!(" {lock}");
        }
        text += &format!("{line}\n");
    }
    text
}

/// The expected verdicts in words, as in `exclusive; stuck until the lease ends`.
fn words(expected: &str) -> String {
    match expected.replace('/', "|").parse::<Expected>() {
        Ok(expected) => {
            let meanings: Vec<_> =
                expected.verdicts().iter().map(|verdict| verdict.meaning()).collect();
            meanings.join(", or ")
        }
        Err(_) => expected.to_owned(),
    }
}

fn as_json() -> serde_json::Value {
    let scenarios = SCENARIOS.iter().map(|scenario| {
        let expected = LOCKS.iter().map(|lock| {
            let verdict = scenario.expected(lock).unwrap_or("–");
            (lock.name.to_owned(), verdict.into())
        });
        serde_json::json!({
            "name": scenario.name,
            "id": scenario.id,
            "about": scenario.about,
            "expected": expected.collect::<serde_json::Map<_, _>>(),
        })
    });
    let locks = LOCKS.iter().map(
        |lock| serde_json::json!({ "name": lock.name, "about": lock.about, "flaw": lock.flaw }),
    );
    serde_json::json!({
        "scenarios": scenarios.collect::<Vec<_>>(),
        "locks": locks.collect::<Vec<_>>(),
    })
}
