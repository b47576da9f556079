//! Some cells of the matrix, with real servers: those whose verdict does not depend on the speed of
//! the machine.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tenure_lab::cell::{self, CellResult, ServerPool};
use tenure_lab::roles;
use tenure_lab::scenarios::Scenario;
use tenure_lab::schemes::LockSpec;
use tenure_lab::verdict::Outcome;

const CELLS: &[(&str, &str)] = &[
    ("oversell", "sqlite"),
    ("pause", "redis"),
    ("pause", "redis-set-nx"),
    ("pause", "redis-unique"),
    ("pause", "redis-watchdog"),
    ("pause", "sqlite"),
    ("suspend", "redis-deadline"),
    ("partition", "redis-script"),
    ("packets-lost", "redis"),
    ("packets-lost", "redis-deadline"),
    ("late-grant", "redis-unique"),
    ("session-killed", "redis"),
    ("session-killed", "redlock-classic"),
    ("session-killed", "sqlite"),
    ("failover", "redis"),
    ("failover", "redis-replicas"),
    ("failover", "redis-unique"),
    ("failover-renewed", "redis-replicas"),
    ("failover-slow", "redis"),
    ("failover-slow", "redis-replicas"),
    ("amnesia", "mysql-session"),
    ("amnesia", "redis"),
    ("amnesia", "redis-unique"),
    ("eviction", "redis"),
    ("release-lost", "mysql-session"),
    ("release-lost", "zookeeper"),
    ("repeat-last", "postgres"),
    ("blocked-row", "mysql"),
    ("blocked-row", "postgres"),
    ("frozen-shard", "redis"),
    ("read-only", "mysql"),
    ("client-clocks", "redis"),
    ("client-clocks", "redis-getset"),
    ("names", "redis-unique"),
    ("names", "sqlite"),
];

fn main() -> ExitCode {
    // The lab starts this program again for the clients and the resource.
    let words: Vec<_> = std::env::args().collect();
    if let [_, lab, verb, role] = &words[..]
        && (lab.as_str(), verb.as_str()) == ("lab", "play")
    {
        return match roles::play(role) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    let trials = CELLS.iter().map(|&(scenario, lock)| {
        Trial::ignorable_test(format!("{scenario}::{lock}"), move || run_cell(scenario, lock))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn run_cell(scenario: &str, lock: &str) -> Result<Completion, Failed> {
    let scenario = Scenario::named(scenario)?;
    let lock = LockSpec::named(lock)?;
    let program = std::env::current_exe()?;
    match cell::run(scenario, lock, &mut ServerPool::default(), &program)? {
        CellResult::Run(run) if run.judgement.outcome == Outcome::AsExpected => {
            Ok(Completion::Completed)
        }
        CellResult::Run(run) => {
            let mut lines = Vec::new();
            run.history.write(&mut lines)?;
            let lines = String::from_utf8_lossy(&lines);
            Err(format!("{:?}\n{lines}", run.judgement).into())
        }
        CellResult::Skipped(why) => {
            let server = lock.topology.map_or("", |topology| topology.server());
            // Whether a network namespace can be made depends on the machine.
            if tenure_servers::require(server) && scenario.name != "packets-lost" {
                Err(why.into())
            } else {
                Ok(Completion::ignored_with(why))
            }
        }
        CellResult::Inapplicable(why) => Err(why.into()),
    }
}
