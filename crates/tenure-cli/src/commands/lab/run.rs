//! `tenure lab run`: one scenario on one lock, with its picture and its verdict.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ValueEnum, value_parser};
use tenure_lab::cell::{self, CellResult, ServerPool};
use tenure_lab::check::Report;
use tenure_lab::history::Register;
use tenure_lab::picture;
use tenure_lab::scenarios::Scenario;
use tenure_lab::schemes::LockSpec;
use tenure_lab::verdict::Outcome;

use super::{comparison, failed, program, unknown};
use crate::failure::Failure;
use crate::output::{self, Harmless, Paint};

const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// Run a scenario on a lock, with real servers and a real fault
///
/// The servers are started on loopback, and stopped afterwards. Start with `oversell`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: tenure lab run pause --lock redis-set-nx")]
pub(crate) struct Run {
    /// The scenario; see `tenure lab list`
    scenario: String,

    /// The lock under test; see `tenure lab list`
    ///
    /// Without it, the lock that most programs write by hand (SET NX and DEL) is played first, then
    /// tenure's, and the results are compared at the end. Files are of the last one.
    #[arg(long, value_name = "NAME")]
    lock: Option<String>,

    /// Print what happened to the register with this fence, too
    #[arg(long)]
    fence: Option<Fence>,

    /// Run it this often; the worst outcome counts
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = value_parser!(u32).range(1..))]
    times: u32,

    /// The lease that clients request, instead of the lock's usual one; a short one makes many runs
    /// faster
    #[arg(long, value_name = "DUR", value_parser = lease)]
    lease: Option<Duration>,

    /// Write the history to this file, as lines of JSON, for `tenure lab replay`
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,

    /// Write the picture to this file, as one page of HTML with the history inside
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the verdict and the results of all checkers to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn lease(text: &str) -> Result<Duration, String> {
    let lease = tenure::duration(text).map_err(|error| error.to_string())?;
    if lease < SHORTEST_LEASE {
        return Err("below 100ms a run shows the speed of the machine, not the lock".to_owned());
    }
    Ok(lease)
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Fence {
    /// No fence
    None,
    /// A fence on writes
    Write,
    /// A fence on reads and writes
    #[value(name = "read+write")]
    ReadWrite,
}

pub(super) fn run(args: &Run) -> Result<u8, Failure> {
    let scenario = Scenario::named(&args.scenario).map_err(|error| unknown(&error))?;
    let locks = match &args.lock {
        Some(name) => vec![LockSpec::named(name).map_err(|error| unknown(&error))?],
        None => comparison::locks(scenario),
    };
    let program = program()?;
    let mut pool = ServerPool::default().with_lease(args.lease);
    let mut worst = Outcome::AsExpected;
    let mut results = Vec::new();
    for lock in locks {
        for _ in 0..args.times {
            let result = cell::run(scenario, lock, &mut pool, &program);
            let result = result.map_err(|error| failed("the run failed", &error))?;
            if !results.is_empty() {
                output::print("\n")?;
            }
            report_result(args, &result)?;
            worst = worst.max(result.outcome());
            results.push((lock, result));
        }
    }
    if args.lock.is_none() {
        output::print(&comparison::text(&results))?;
    }
    Ok(worst.code())
}

fn report_result(args: &Run, result: &CellResult) -> Result<(), Failure> {
    let run = match result {
        CellResult::Run(run) => run,
        CellResult::Inapplicable(reason) => return output::print(&format!("–  {reason}\n")),
        CellResult::Skipped(reason) => {
            return output::print(&format!("skipped: {}\n", Harmless(reason)));
        }
    };
    let (history, report, judgement) = (&run.history, &run.report, &run.judgement);
    let colour = Paint::stdout().wanted();
    let mut text = picture::terminal(history, report, judgement, colour);
    if let Some(fence) = args.fence {
        text += &format!("{}\n", register_line(fence, report));
    }
    output::print(&text)?;
    if let Some(path) = &args.html {
        let page = picture::html(history, report, judgement);
        write(path, |file| Ok(file.write_all(page.as_bytes())?))?;
    }
    if let Some(path) = &args.history {
        write(path, |file| run.history.write(file))?;
    }
    if let Some(path) = &args.json {
        write(path, |file| Ok(serde_json::to_writer(file, &run.summary())?))?;
    }
    Ok(())
}

fn register_line(fence: Fence, report: &Report) -> String {
    let (register, name) = match fence {
        Fence::None => (Register::Plain, "no fence"),
        Fence::Write => (Register::Write, "fence on writes"),
        Fence::ReadWrite => (Register::ReadWrite, "fence on reads and writes"),
    };
    let tally = report.resource.of(register);
    let (lost, accepted, refused) = (tally.lost, tally.accepted, tally.refused);
    format!("{name}: {lost} of {accepted} updates lost, {refused} refused")
}

pub(super) fn write(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> Result<(), Failure> {
    let filled = File::create(path).map_err(anyhow::Error::from).and_then(|file| {
        let mut file = BufWriter::new(file);
        fill(&mut file)?;
        Ok(file.flush()?)
    });
    filled.map_err(|error| failed(&format!("cannot write {}", path.display()), &error))
}
