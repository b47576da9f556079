//! `tenure lab run`: one scenario on one lock, or on every lock, with its picture and its verdict.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ValueEnum, value_parser};
use tenure_lab::check::Report;
use tenure_lab::history::Register;
use tenure_lab::picture;
use tenure_lab::run::{self, Played, Rigs};
use tenure_lab::scenarios::Scenario;
use tenure_lab::schemes::Lock;
use tenure_lab::verdict::Outcome;

use super::{failed, program, unknown};
use crate::failure::Failure;
use crate::output::{self, Harmless, Paint};

/// Play a scenario on a lock, with real servers and a real fault
///
/// The servers are started for it, on loopback, and ended after it. Start with `oversell`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: tenure lab run pause --lock redis-set-nx")]
pub(crate) struct Run {
    /// The scenario, by name or by its number in the catalogue; see `tenure lab list`
    scenario: String,

    /// The lock to hit; see `tenure lab list`
    #[arg(long, value_name = "NAME", default_value = "redis-unique")]
    lock: String,

    /// Tell what happened to the register with this fence, rather than to all three
    #[arg(long)]
    fence: Option<Fence>,

    /// Play it this often; the worst outcome counts
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = value_parser!(u32).range(1..))]
    times: u32,

    /// The lease that clients ask for, rather than the lock's usual one; short ones make many runs
    /// go by faster
    #[arg(long, value_name = "DUR", value_parser = lease)]
    lease: Option<Duration>,

    /// Write what happened to this file, as lines of JSON, for `tenure lab replay`
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,

    /// Write the picture to this file, as one page of HTML with the history inside
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the verdict and all that the checkers found to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn lease(text: &str) -> Result<Duration, String> {
    let lease = tenure::duration(text).map_err(|error| error.to_string())?;
    match lease < Duration::from_millis(100) {
        true => Err("below 100ms a run shows the speed of the machine, not the lock".to_owned()),
        false => Ok(lease),
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Fence {
    /// No fence
    None,
    /// A fence that looks at writes
    Write,
    /// A fence that looks at reads and writes
    #[value(name = "read+write")]
    ReadWrite,
}

pub(super) fn run(args: &Run) -> Result<u8, Failure> {
    let scenario = Scenario::named(&args.scenario).map_err(|error| unknown(&error))?;
    let lock = Lock::named(&args.lock).map_err(|error| unknown(&error))?;
    let (program, mut rigs) = (program()?, Rigs::default().with_lease(args.lease));
    let mut worst = Outcome::AsExpected;
    for _ in 0..args.times {
        let played = run::play(scenario, lock, &mut rigs, &program);
        let played = played.map_err(|error| failed("the run went wrong", &error))?;
        tell(args, &played)?;
        if played.outcome().code() > worst.code() {
            worst = played.outcome();
        }
    }
    Ok(worst.code())
}

fn tell(args: &Run, played: &Played) -> Result<(), Failure> {
    let run = match played {
        Played::Run(run) => run,
        Played::Inapplicable(reason) => return output::print(&format!("–  {reason}\n")),
        Played::Skipped(reason) => {
            return output::print(&format!("skipped: {}\n", Harmless(reason)));
        }
    };
    let (history, report, judgement) = (&run.history, &run.report, &run.judgement);
    let colour = Paint::stdout().wanted();
    let mut text = picture::terminal(history, report, judgement, colour);
    if let Some(fence) = args.fence {
        text += &format!("{}\n", fenced(fence, report));
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

fn fenced(fence: Fence, report: &Report) -> String {
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
