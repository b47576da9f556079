//! Side-by-side measurements: subjects take turns in one run, so that a noisy machine disturbs all
//! of them alike, and what counts is the ratio to the first.

mod compare;
mod consul;
mod embedded;
mod etcd;
mod memory;
mod postgres;
mod run;
mod zookeeper;

use std::process::ExitCode;

use compare::Comparison;

/// A scenario by name.
struct Scenario {
    name: &'static str,
    about: &'static str,
    compare: fn(usize) -> anyhow::Result<Comparison>,
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "memory",
        about: "acquire + release inside one process",
        compare: memory::compare,
    },
    Scenario {
        name: "embedded",
        about: "acquire + release on the embedded store",
        compare: embedded::compare,
    },
    Scenario {
        name: "etcd",
        about: "acquire + release on etcd, one member",
        compare: etcd::compare,
    },
    Scenario {
        name: "etcd-queue",
        about: "etcd: a lock goes through 1, 10 and 100 waiters, time for each",
        compare: etcd::compare_queues,
    },
    Scenario {
        name: "postgres",
        about: "acquire + release on PostgreSQL, in all modes",
        compare: postgres::compare,
    },
    Scenario {
        name: "consul",
        about: "acquire + release in Consul, one development agent",
        compare: consul::compare,
    },
    Scenario {
        name: "run",
        about: "a command under a lock, from the shell's point of view",
        compare: run::compare,
    },
    Scenario {
        name: "zookeeper",
        about: "acquire + release on ZooKeeper, one server",
        compare: zookeeper::compare,
    },
];

const HELP: &str = "\
Usage: tenure-bench [compare] [SCENARIO…] [--rounds N] [--json]

Runs the scenarios (all, if none is named) and prints one table each: microseconds, and the ratio of
the medians to the first row. Build it with --release.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(wish) = Wish::parse(&arguments) else {
        print!("{HELP}\nScenarios:\n");
        SCENARIOS.iter().for_each(|scenario| println!("  {:10} {}", scenario.name, scenario.about));
        return if arguments.iter().any(|word| word.contains("help")) {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(64)
        };
    };
    let mut code = ExitCode::SUCCESS;
    for scenario in wish.scenarios {
        eprintln!("measuring {}: {}", scenario.name, scenario.about);
        match (scenario.compare)(wish.rounds) {
            Ok(comparison) if wish.json => println!("{}", comparison.to_json(scenario.name)),
            Ok(comparison) => println!("\n{}\n{comparison}", scenario.about),
            Err(error) => {
                eprintln!("{}: {error:#}", scenario.name);
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

/// What was asked for on the command line.
struct Wish {
    scenarios: Vec<&'static Scenario>,
    rounds: usize,
    json: bool,
}

impl Wish {
    fn parse(arguments: &[String]) -> Option<Wish> {
        let mut wish = Wish { scenarios: Vec::new(), rounds: 300, json: false };
        let mut words = arguments.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                "compare" => {}
                "--json" => wish.json = true,
                "--rounds" => wish.rounds = words.next()?.parse().ok().filter(|n| *n > 0)?,
                name => wish.scenarios.push(SCENARIOS.iter().find(|known| known.name == name)?),
            }
        }
        if wish.scenarios.is_empty() {
            wish.scenarios = SCENARIOS.iter().collect();
        }
        Some(wish)
    }
}
