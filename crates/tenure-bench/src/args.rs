//! The command line.

use std::path::PathBuf;

use crate::scenarios::{SCENARIOS, Scenario, named};
use crate::warm::Plan;

const HELP: &str = "\
Usage: tenure-bench [SCENARIO…] [--rounds N] [--no-peers] [--json] [--html FILE]

Runs the scenarios (all, if none is named; `fence` names all that begin so) and prints one table
each. Build it with --release. `ratio` is the time of a subject divided by that of the first one,
`speed` the inverse; compare only inside one table.

  --rounds N    how often subjects take turns (300); a warm loop has a tenth as many turns
  --no-peers    without locks in other languages, which are fetched and built first
  --json        one line of JSON for each subject instead of tables
  --html FILE   also draws all tables into this file
";

/// What to do.
pub(crate) enum Order {
    Help,
    Measure(Args),
}

/// The command line.
pub(crate) struct Args {
    pub(crate) scenarios: Vec<&'static Scenario>,
    pub(crate) plan: Plan,
    pub(crate) json: bool,
    pub(crate) html: Option<PathBuf>,
}

impl Order {
    /// Reads the arguments; what is wrong with them.
    pub(crate) fn parse(arguments: &[String]) -> Result<Order, String> {
        let plan = Plan { rounds: 300, peers: true };
        let mut args = Args { scenarios: Vec::new(), plan, json: false, html: None };
        let mut words = arguments.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                "compare" => {}
                "help" | "--help" | "-h" => return Ok(Order::Help),
                "--json" => args.json = true,
                "--no-peers" => args.plan.peers = false,
                "--html" => {
                    args.html = Some(words.next().ok_or("--html needs the name of a file")?.into());
                }
                "--rounds" => {
                    let number = words.next().ok_or("--rounds needs a number")?;
                    let number = number.parse().ok().filter(|number| *number > 0);
                    args.plan.rounds = number.ok_or("--rounds needs a number above zero")?;
                }
                option if option.starts_with('-') => {
                    return Err(format!("there is no option `{option}`; --help lists them"));
                }
                name => {
                    let unknown = || format!("there is no scenario `{name}`; --help lists them");
                    args.scenarios.extend(named(name).ok_or_else(unknown)?);
                }
            }
        }
        if args.scenarios.is_empty() {
            args.scenarios = SCENARIOS.iter().collect();
        }
        Ok(Order::Measure(args))
    }
}

/// The help text.
pub(crate) fn help() -> String {
    let lines = SCENARIOS.iter().map(|known| format!("  {:17} {}\n", known.0, known.1));
    format!("{HELP}\nScenarios:\n{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Order, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Order::parse(&words)
    }

    #[test]
    fn bad_input_is_named() {
        for (line, part) in [
            ("--rounds", "needs a number"),
            ("--rounds 0", "above zero"),
            ("--rounds many", "above zero"),
            ("redis-cold", "`redis-cold`"),
            ("--fast", "`--fast`"),
            ("--html", "name of a file"),
        ] {
            let error = parse(line).err().unwrap_or_default();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn scenarios_and_groups_are_found() {
        let Ok(Order::Measure(args)) = parse("redis-warm fence --json --no-peers --rounds 7")
        else {
            panic!("it is a good line");
        };
        assert_eq!(args.scenarios[0].0, "redis-warm");
        assert!(args.scenarios.len() > 3);
        assert!(args.json && !args.plan.peers && args.plan.rounds == 7);
        assert!(help().contains("redis-warm"));
    }
}
