//! Side-by-side measurements: the subjects take turns in one run, so that a noisy machine disturbs
//! all of them alike. The result is the ratio to the first subject.

mod compare;
mod consul;
mod cycle;
mod embedded;
mod etcd;
mod fence;
mod memory;
mod mysql;
mod postgres;
mod queue;
mod redis;
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
        name: "etcd-held",
        about: "etcd: 10,000 held locks and their renewals, for half a minute",
        compare: etcd::measure_held,
    },
    Scenario {
        name: "mysql",
        about: "acquire + release on MariaDB, in all modes",
        compare: mysql::compare,
    },
    Scenario {
        name: "postgres",
        about: "acquire + release on PostgreSQL, in all modes",
        compare: postgres::compare,
    },
    Scenario {
        name: "queue",
        about: "servers with a queue: one lock goes through 1, 10 and 100 waiters",
        compare: queue::compare,
    },
    Scenario {
        name: "redis",
        about: "acquire + release on Redis, one task",
        compare: redis::compare_one_task,
    },
    Scenario {
        name: "redis-64",
        about: "acquire + release on Redis, 64 tasks on 64 keys, all of them once",
        compare: redis::compare_many_tasks,
    },
    Scenario {
        name: "redis-queue",
        about: "Redis: one lock goes round among processes, time for each handoff",
        compare: redis::compare_queues,
    },
    Scenario {
        name: "redis-held",
        about: "Redis: 100,000 held locks and their renewals, for half a minute",
        compare: redis::measure_held,
    },
    Scenario {
        name: "redlock",
        about: "acquire + release on five Redis masters, one task",
        compare: redis::compare_five,
    },
    Scenario {
        name: "consul",
        about: "acquire + release in Consul, one development agent",
        compare: consul::compare,
    },
    Scenario {
        name: "fence-consul",
        about: "Consul: a write, with and without the condition that the lock is held",
        compare: consul::compare_condition,
    },
    Scenario {
        name: "fence-etcd",
        about: "etcd: a write, with and without the condition that the lock is held",
        compare: etcd::compare_condition,
    },
    Scenario {
        name: "fence-file",
        about: "a file: replacing it, with and without a fence",
        compare: fence::compare_file,
    },
    Scenario {
        name: "fence-http",
        about: "an HTTP service: a request over loopback, with and without the layer",
        compare: fence::http::compare,
    },
    Scenario {
        name: "fence-memory",
        about: "a number in memory, with and without a fence",
        compare: fence::compare_memory,
    },
    Scenario {
        name: "fence-mysql",
        about: "MariaDB: a write in a transaction, with and without a fence",
        compare: fence::compare_mysql,
    },
    Scenario {
        name: "fence-postgres",
        about: "PostgreSQL: a write in a transaction, with and without a fence",
        compare: fence::compare_postgres,
    },
    Scenario {
        name: "fence-redis",
        about: "Redis: a write, with and without a fence",
        compare: fence::compare_redis,
    },
    Scenario {
        name: "fence-sqlite",
        about: "SQLite: a write in a transaction, with and without a fence",
        compare: fence::compare_sqlite,
    },
    Scenario {
        name: "fence-zookeeper",
        about: "ZooKeeper: a write, with and without the condition that the lock is held",
        compare: zookeeper::compare_condition,
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
    if let Some(done) = redis::run_worker(&arguments) {
        // The process that started this one sees the exit code.
        return if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let Some(args) = Args::parse(&arguments) else {
        print!("{HELP}\nScenarios:\n");
        SCENARIOS.iter().for_each(|scenario| println!("  {:15} {}", scenario.name, scenario.about));
        return if arguments.iter().any(|word| word.contains("help")) {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(64)
        };
    };
    let mut code = ExitCode::SUCCESS;
    for scenario in args.scenarios {
        eprintln!("measuring {}: {}", scenario.name, scenario.about);
        match (scenario.compare)(args.rounds) {
            Ok(comparison) if args.json => println!("{}", comparison.to_json(scenario.name)),
            Ok(comparison) => println!("\n{}\n{comparison}", scenario.about),
            Err(error) => {
                eprintln!("{}: {error:#}", scenario.name);
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

/// A runtime with one thread.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// The command line.
struct Args {
    scenarios: Vec<&'static Scenario>,
    rounds: usize,
    json: bool,
}

impl Args {
    fn parse(arguments: &[String]) -> Option<Args> {
        let mut args = Args { scenarios: Vec::new(), rounds: 300, json: false };
        let mut words = arguments.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                "compare" => {}
                "--json" => args.json = true,
                "--rounds" => args.rounds = words.next()?.parse().ok().filter(|n| *n > 0)?,
                name => args.scenarios.extend(named(name)?),
            }
        }
        if args.scenarios.is_empty() {
            args.scenarios = SCENARIOS.iter().collect();
        }
        Some(args)
    }
}

/// The scenario with this name, or all scenarios of a group such as `fence`.
fn named(name: &str) -> Option<Vec<&'static Scenario>> {
    if let Some(exact) = SCENARIOS.iter().find(|known| known.name == name) {
        return Some(vec![exact]);
    }
    let group = format!("{name}-");
    let all: Vec<_> = SCENARIOS.iter().filter(|known| known.name.starts_with(&group)).collect();
    (!all.is_empty()).then_some(all)
}
