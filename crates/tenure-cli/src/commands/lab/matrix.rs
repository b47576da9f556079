//! `tenure lab matrix`: every scenario on every lock, as a table of measured verdicts.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Instant;

use clap::value_parser;
use tenure_lab::cell::{self, CellResult, ServerPool};
use tenure_lab::matrix::{CellRun, Matrix as Table};
use tenure_lab::scenarios::{SCENARIOS, Scenario};
use tenure_lab::schemes::{LOCKS, LockSpec};
use tenure_lab::sync::Mutex;
use tenure_lab::verdict::{Outcome, Verdict};

use super::run::write;
use super::{program, unknown};
use crate::failure::Failure;
use crate::output::{self, Harmless};

/// Run every scenario on every lock and print the table of verdicts
///
/// The cells of a server that is missing on this machine are skipped. Exit code: 0 if all measured
/// verdicts are as expected, 1 if one differs, 2 if one is inconclusive, 3 if nothing was measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Matrix {
    /// Only these locks, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    locks: Vec<String>,

    /// Only these scenarios, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    scenarios: Vec<String>,

    /// Run each cell this often; it is as expected if all of its runs are
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = value_parser!(u32).range(1..))]
    times: u32,

    /// Run this many cells at once, each with servers of its own; on an overloaded machine verdicts
    /// can differ
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = value_parser!(u16).range(1..))]
    jobs: u16,

    /// Keep the history of every run that is not as expected in this folder, instead of a new one
    /// among the temporary files
    #[arg(long, value_name = "DIR")]
    histories: Option<PathBuf>,

    /// Write the table and one picture per cell to this file, as one page of HTML
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the table to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(args: &Matrix) -> Result<u8, Failure> {
    let locks = select(&args.locks, LOCKS, LockSpec::named)?;
    let scenarios = select(&args.scenarios, SCENARIOS, Scenario::named)?;
    let table = Table::new(&scenarios, &locks);
    let run = MatrixRun {
        total: table.size() * args.times as usize,
        table: Mutex::new(table),
        // Lock by lock, so that servers are started once and stopped before the next kind.
        rounds: Mutex::new(locks.iter().flat_map(|lock| (0..args.times).map(|_| *lock)).collect()),
        scenarios,
        program: program()?,
        folder: args.histories.clone().map_or_else(OnceLock::new, OnceLock::from),
        start: Instant::now(),
    };
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| run.run_cells());
        }
    });
    let table = run.table.lock();
    output::print(&table.terminal())?;
    output::say(&run.summary(&table));
    if let Some(path) = &args.html {
        let about = format!("Real servers, real faults. {}.", run.summary(&table));
        write(path, |file| Ok(file.write_all(table.html(&about).as_bytes())?))?;
    }
    if let Some(path) = &args.json {
        write(path, |file| Ok(serde_json::to_writer_pretty(file, &*table)?))?;
    }
    Ok(table.outcome().map_or(Outcome::Skipped.code(), Outcome::code))
}

/// What the threads that run cells share.
struct MatrixRun {
    table: Mutex<Table>,
    /// Number of runs in all.
    total: usize,
    /// Locks on which all scenarios still have to be run.
    rounds: Mutex<VecDeque<&'static LockSpec>>,
    scenarios: Vec<&'static Scenario>,
    program: PathBuf,
    /// Folder for the histories that are kept; created for the first of them unless it was named.
    folder: OnceLock<PathBuf>,
    start: Instant,
}

impl MatrixRun {
    /// Runs cells until none is left, on servers of its own.
    fn run_cells(&self) {
        let mut pool = ServerPool::default();
        loop {
            let Some(lock) = self.rounds.lock().pop_front() else { return };
            pool.retain(lock.topology);
            for scenario in self.scenarios.iter().filter(|one| one.expected(lock).is_ok()) {
                let began = Instant::now();
                let result = cell::run(scenario, lock, &mut pool, &self.program);
                self.record(scenario, lock, &result, began.elapsed().as_secs_f64());
            }
        }
    }

    /// Adds a run to the table, and reports the progress.
    fn record(
        &self,
        scenario: &Scenario,
        lock: &LockSpec,
        result: &anyhow::Result<CellResult>,
        seconds: f64,
    ) {
        let mut table = self.table.lock();
        let number = Outcome::ALL.iter().map(|outcome| table.count(*outcome)).sum::<usize>() + 1;
        let name = format!("{}-{}-{number}", scenario.name, lock.name);
        let run = CellRun::of(result, seconds, self.save_history(&name, result));
        // The signs are for the table; a line has room for the word.
        let verdict: Option<Verdict> = run.measured.parse().ok();
        let measured = verdict.map_or_else(|| run.measured.clone(), |verdict| verdict.to_string());
        let line = format!("{} on {}: {measured}  {}", scenario.name, lock.name, run.headline);
        let so_far = self.start.elapsed().as_secs();
        output::say(&format!(
            "[{number}/{}] {} [{}] ({seconds:.1} s; {so_far} s)",
            self.total,
            Harmless(&line),
            run.outcome.text()
        ));
        table.add(scenario, lock, result, run);
    }

    /// Saves the history of a run that was not as expected, for `tenure lab replay`.
    fn save_history(&self, name: &str, result: &anyhow::Result<CellResult>) -> Option<PathBuf> {
        let Ok(CellResult::Run(run)) = result else { return None };
        if run.judgement.outcome == Outcome::AsExpected {
            return None;
        }
        let written = self.folder().and_then(|folder| {
            let path = folder.join(format!("{name}.jsonl"));
            write(&path, |file| run.history.write(file)).map(|()| path)
        });
        match written {
            Ok(path) => Some(path),
            // The table is worth more than the history of one run.
            Err(failure) => {
                failure.tell();
                None
            }
        }
    }

    fn folder(&self) -> Result<&PathBuf, Failure> {
        let folder = match self.folder.get() {
            Some(named) => std::fs::create_dir_all(named).map(|()| named.clone()),
            // The table is locked here, so that only one is created.
            None => tenure_lab::matrix::new_history_folder(),
        };
        let folder =
            folder.map_err(|error| Failure::system("make a folder for histories", error))?;
        Ok(self.folder.get_or_init(|| folder))
    }

    fn summary(&self, table: &Table) -> String {
        let mut parts = Vec::new();
        for outcome in Outcome::ALL {
            let count = table.count(outcome);
            if count > 0 || outcome == Outcome::AsExpected {
                parts.push(format!("{count} {}", outcome.text()));
            }
        }
        let seconds = self.start.elapsed().as_secs();
        format!("{} runs in {seconds} s: {}", self.total, parts.join(", "))
    }
}

/// Those with these names, or all.
fn select<T>(
    names: &[String],
    all: &'static [T],
    named: fn(&str) -> anyhow::Result<&'static T>,
) -> Result<Vec<&'static T>, Failure> {
    if names.is_empty() {
        return Ok(all.iter().collect());
    }
    names.iter().map(|name| named(name).map_err(|error| unknown(&error))).collect()
}
