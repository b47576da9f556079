//! `tenure lab matrix`: every scenario on every lock, as one table of measured verdicts.

use std::path::PathBuf;
use std::time::Instant;

use tenure_lab::matrix::Matrix as Table;
use tenure_lab::run::{self, Rigs};
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
    #[arg(long, value_name = "N", default_value_t = 1)]
    times: u32,

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
    let (program, mut rigs) = (program()?, Rigs::default());
    let mut table = Table::new(&scenarios, &locks);
    let start = Instant::now();
    // Lock by lock, so that servers are started once and ended before the next kind.
    for (number, lock) in locks.iter().enumerate() {
        rigs.only(lock.topology);
        for scenario in &scenarios {
            for _ in 0..args.times.max(1) {
                let began = Instant::now();
                let played = run::play(scenario, lock, &mut rigs, &program);
                let cell = table.take(scenario, lock, played);
                let seconds = (began.elapsed().as_secs_f64(), start.elapsed().as_secs());
                let (name, of) = (format!("{} on {}", scenario.name, lock.name), locks.len());
                let line = format!("[{}/{of}] {name}: {cell}", number + 1);
                output::say(&format!("{} ({:.1} s; {} s)", Harmless(&line), seconds.0, seconds.1));
            }
        }
    }
    output::print(&table.terminal())?;
    if let Some(path) = &args.html {
        let about = format!("Real servers, real faults, {} s.", start.elapsed().as_secs());
        write(path, |file| Ok(file.write_all(table.html(&about).as_bytes())?))?;
    }
    if let Some(path) = &args.json {
        write(path, |file| Ok(serde_json::to_writer_pretty(file, &table)?))?;
    }
    Ok(table.outcome().map_or(Outcome::Skipped.code(), Outcome::code))
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
