//! Some cells of the matrix, with real servers: those whose verdict does not depend on how fast
//! this machine is.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tenure_lab::run::{Played, Rigs, play};
use tenure_lab::scenarios::Scenario;
use tenure_lab::schemes::Lock;
use tenure_lab::stage;
use tenure_lab::verdict::Outcome;

fn main() -> ExitCode {
    // The lab starts this program again to play the clients and the resource.
    let words: Vec<_> = std::env::args().collect();
    if let [_, lab, verb, part] = &words[..]
        && (lab.as_str(), verb.as_str()) == ("lab", "play")
    {
        return match stage::play(part) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    let trials = CELLS.iter().map(|&(scenario, lock)| {
        Trial::ignorable_test(format!("{scenario}::{lock}"), move || cell(scenario, lock))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn cell(scenario: &str, lock: &str) -> Result<Completion, Failed> {
    let (scenario, lock) = (Scenario::named(scenario)?, Lock::named(lock)?);
    let program = std::env::current_exe()?;
    match play(scenario, lock, &mut Rigs::default(), &program)? {
        Played::Run(run) if run.judgement.outcome == Outcome::AsExpected => {
            Ok(Completion::Completed)
        }
        Played::Run(run) => {
            let mut lines = Vec::new();
            run.history.write(&mut lines)?;
            let lines = String::from_utf8_lossy(&lines);
            Err(format!("{:?}\n{lines}", run.judgement).into())
        }
        Played::Skipped(why) => {
            let server = lock.topology.map_or("", |topology| topology.server());
            // A network of its own is for the machine to allow, not for us to get.
            match tenure_servers::require(server) && scenario.name != "packets-lost" {
                true => Err(why.into()),
                false => Ok(Completion::ignored_with(why)),
            }
        }
        Played::Inapplicable(why) => Err(why.into()),
    }
}

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
    ("failover-slow", "redis"),
    ("failover-slow", "redis-replicas"),
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
