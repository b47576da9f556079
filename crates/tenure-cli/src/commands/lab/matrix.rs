//! `tenure lab matrix`: every scenario on every lock, as one table of measured verdicts.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use clap::value_parser;
use tenure_lab::matrix::{Matrix as Table, Round};
use tenure_lab::run::{self, Played, Rigs};
use tenure_lab::scenarios::{SCENARIOS, Scenario};
use tenure_lab::schemes::{LOCKS, Lock};
use tenure_lab::verdict::Outcome;

use super::run::write;
use super::{program, unknown};
use crate::failure::Failure;
use crate::output::{self, Harmless};

/// Play every scenario on every lock and print the table of verdicts
///
/// A machine without one of the servers skips just its cells. Exit code: 0 if all that was
/// measured is expected, 1 if a cell differs, 2 if one is inconclusive, 3 if nothing was measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Matrix {
    /// Only these locks, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    locks: Vec<String>,

    /// Only these scenarios, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    scenarios: Vec<String>,

    /// Play each cell this often; it counts as expected if all are
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = value_parser!(u32).range(1..))]
    times: u32,

    /// Play so many cells at once, each with servers of its own; more than the machine can carry
    /// make verdicts differ
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = value_parser!(u16).range(1..))]
    jobs: u16,

    /// Keep the history of every run that is not as expected in this folder, rather than in one of
    /// its own among the temporary files
    #[arg(long, value_name = "DIR")]
    histories: Option<PathBuf>,

    /// Write the table and the picture of every run to this file, as one page of HTML
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the table to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(args: &Matrix) -> Result<u8, Failure> {
    let locks = chosen(&args.locks, LOCKS, Lock::named)?;
    let scenarios = chosen(&args.scenarios, SCENARIOS, Scenario::named)?;
    let table = Table::new(&scenarios, &locks);
    let show = Show {
        total: table.size() * args.times as usize,
        table: Mutex::new(table),
        // Lock by lock, so that servers are started once and ended before the next kind.
        rounds: Mutex::new(locks.iter().flat_map(|lock| (0..args.times).map(|_| *lock)).collect()),
        scenarios,
        program: program()?,
        folder: args.histories.clone().map_or_else(OnceLock::new, OnceLock::from),
        start: Instant::now(),
    };
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| show.play());
        }
    });
    let table = lock(&show.table);
    output::print(&table.terminal())?;
    output::say(&show.summary(&table));
    if let Some(path) = &args.html {
        let about = format!("Real servers, real faults. {}.", show.summary(&table));
        write(path, |file| Ok(file.write_all(table.html(&about).as_bytes())?))?;
    }
    if let Some(path) = &args.json {
        write(path, |file| Ok(serde_json::to_writer_pretty(file, &*table)?))?;
    }
    Ok(table.outcome().map_or(Outcome::Skipped.code(), Outcome::code))
}

/// What those that play at the same time have in common.
struct Show {
    table: Mutex<Table>,
    /// How many runs there will be.
    total: usize,
    /// Locks on which all scenarios have to be played once more.
    rounds: Mutex<VecDeque<&'static Lock>>,
    scenarios: Vec<&'static Scenario>,
    program: PathBuf,
    /// For the histories that are worth keeping; made for the first of them unless it was named.
    folder: OnceLock<PathBuf>,
    start: Instant,
}

impl Show {
    /// Plays until nothing is left to play, on servers of its own.
    fn play(&self) {
        let mut rigs = Rigs::default();
        loop {
            let Some(on) = lock(&self.rounds).pop_front() else { return };
            rigs.only(on.topology);
            for scenario in self.scenarios.iter().filter(|one| one.expected(on).is_ok()) {
                let began = Instant::now();
                let played = run::play(scenario, on, &mut rigs, &self.program);
                self.take(scenario, on, &played, began.elapsed().as_secs_f64());
            }
        }
    }

    /// Takes a run down, and tells how far it is.
    fn take(&self, scenario: &Scenario, on: &Lock, played: &anyhow::Result<Played>, seconds: f64) {
        let mut table = lock(&self.table);
        let number = Outcome::ALL.iter().map(|outcome| table.count(*outcome)).sum::<usize>() + 1;
        let name = format!("{}-{}-{number}", scenario.name, on.name);
        let round = Round::of(played, seconds, self.keep(&name, played));
        let (measured, headline, outcome) = (&round.measured, &round.headline, round.outcome);
        let line = format!("{} on {}: {measured}  {headline}", scenario.name, on.name);
        let so_far = self.start.elapsed().as_secs();
        output::say(&format!(
            "[{number}/{}] {} [{}] ({seconds:.1} s; {so_far} s)",
            self.total,
            Harmless(&line),
            outcome.text()
        ));
        table.take(scenario, on, played, round);
    }

    /// Writes down what was not as expected, for `tenure lab replay`.
    fn keep(&self, name: &str, played: &anyhow::Result<Played>) -> Option<PathBuf> {
        let Ok(Played::Run(run)) = played else { return None };
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
        let made = match self.folder.get() {
            Some(named) => std::fs::create_dir_all(named).map(|()| named.clone()),
            // Runs are taken down one at a time, so there is only ever one.
            None => tenure_lab::matrix::folder(),
        };
        let made = made.map_err(|error| Failure::system("make a folder for histories", error))?;
        Ok(self.folder.get_or_init(|| made))
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

/// A run that panicked has taken nothing down.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The named ones, or all.
fn chosen<T>(
    names: &[String],
    all: &'static [T],
    named: fn(&str) -> anyhow::Result<&'static T>,
) -> Result<Vec<&'static T>, Failure> {
    if names.is_empty() {
        return Ok(all.iter().collect());
    }
    names.iter().map(|name| named(name).map_err(|error| unknown(&error))).collect()
}
