//! `tenure lab list`: the scenarios, the locks, and the expected verdicts.

use tenure_lab::scenarios::{SCENARIOS, Scenario};
use tenure_lab::schemes::LOCKS;

use crate::exit;
use crate::failure::Failure;
use crate::output;

/// List the scenarios, one line each, with the expected verdict per lock
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &List) -> Result<u8, Failure> {
    if args.json {
        output::print_json(&as_json())?;
        return Ok(exit::DONE);
    }
    let mut text = String::from("Scenarios\n\n");
    for scenario in SCENARIOS {
        text += &format!("  {:16} {}  {}\n", scenario.name, scenario.id, scenario.about);
        text += &format!("  {:16}      {}\n", "", expectations(scenario));
    }
    text += "\nLocks\n\n";
    for lock in LOCKS {
        text += &format!("  {:19} {}\n", lock.name, lock.about);
        if !lock.flaw.is_empty() {
            text += &format!("  {:19} wrong: {}\n", "", lock.flaw);
        }
    }
    text += "\nVerdicts: ✔ exclusive and live; U two holders, a read+write fence saves the data;\n\
             U! nothing saves it; T stuck until the lease ends; T+ longer; ∞ until an operator\n\
             intervenes; $ costs more than its limit. A scenario does not happen to a lock that\n\
             it does not name. F01, F02 …: number of the fault, also in histories and pictures.\n";
    output::print(&text)?;
    Ok(exit::DONE)
}

/// The locks by expected verdict, as in `U redis sqlite · ✔ etcd`.
fn expectations(scenario: &Scenario) -> String {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for lock in LOCKS {
        let Ok(verdict) = scenario.expected(lock) else { continue };
        match groups.iter_mut().find(|(known, _)| *known == verdict) {
            Some((_, locks)) => locks.push(lock.name),
            None => groups.push((verdict, vec![lock.name])),
        }
    }
    let groups: Vec<_> =
        groups.iter().map(|(verdict, locks)| format!("{verdict} {}", locks.join(" "))).collect();
    groups.join(" · ")
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
