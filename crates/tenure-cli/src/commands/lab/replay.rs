//! `tenure lab replay`: check and draw a recorded history again.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tenure_lab::cell::Run;
use tenure_lab::history::History;
use tenure_lab::picture;

use super::run::write;
use crate::exit;
use crate::failure::Failure;
use crate::output::{self, Paint};

/// The longest history in bytes. A run writes some kilobytes, the longest simulation some
/// megabytes.
const LONGEST: u64 = 64 << 20;

/// Check and draw a recorded history again; needs no server
///
/// Exit code: 0 the verdict is as expected, 1 it differs, 2 inconclusive.
#[derive(Debug, clap::Args)]
pub(crate) struct Replay {
    /// The history: lines of JSON, or a page of the lab that contains them; `-` is stdin
    file: PathBuf,

    /// Write the picture to this file, as one page of HTML with the history inside
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the picture alone to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Write the verdict and the results of all checkers to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Print the result of each checker, too
    #[arg(long)]
    checks: bool,
}

pub(super) fn run(args: &Replay) -> Result<u8, Failure> {
    let run = Run::of(read(&args.file)?);
    let (history, report, judgement) = (&run.history, &run.report, &run.judgement);
    let colour = Paint::stdout().wanted();
    output::print(&picture::terminal(history, report, judgement, colour))?;
    if args.checks {
        output::print(&format!("\n{}", picture::table(report, judgement)))?;
    }
    if let Some(path) = &args.html {
        let page = picture::html(history, report, judgement);
        write(path, |file| Ok(file.write_all(page.as_bytes())?))?;
    }
    if let Some(path) = &args.svg {
        let drawing = picture::svg(history, report, judgement);
        write(path, |file| Ok(file.write_all(drawing.as_bytes())?))?;
    }
    if let Some(path) = &args.json {
        write(path, |file| Ok(serde_json::to_writer(file, &run.summary())?))?;
    }
    Ok(judgement.outcome.code())
}

fn read(path: &Path) -> Result<History, Failure> {
    let text = if path.as_os_str() == "-" {
        text_of(io::stdin().lock())
    } else {
        File::open(path).map_err(anyhow::Error::from).and_then(text_of)
    };
    let history = text.and_then(|text| {
        let page = text.trim_start().starts_with('<').then(|| picture::embedded(&text)).flatten();
        History::read(page.unwrap_or(text).as_bytes())
    });
    history.map_err(|error| {
        let message = format!("cannot read the history {}: {error:#}", path.display());
        Failure::new(exit::USAGE, message, "record one with `tenure lab run … --history FILE`")
    })
}

/// The whole text, unless it is longer than any history of the lab: an input without an end, such
/// as a device, must not use up the memory.
fn text_of(input: impl Read) -> anyhow::Result<String> {
    let mut text = String::new();
    input.take(LONGEST + 1).read_to_string(&mut text)?;
    anyhow::ensure!(text.len() as u64 <= LONGEST, "it is longer than {} MiB", LONGEST >> 20);
    Ok(text)
}
