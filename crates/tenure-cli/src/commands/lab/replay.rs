//! `tenure lab replay`: check and draw a recorded history again.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use tenure_lab::history::History;
use tenure_lab::verdict::Judgement;
use tenure_lab::{check, picture};

use crate::exit;
use crate::failure::Failure;
use crate::output::{self, Harmless};

/// Check and draw a recorded history again; needs no server
#[derive(Debug, clap::Args)]
pub(crate) struct Replay {
    /// The history: lines of JSON, or a picture that has them inside; `-` is stdin
    file: PathBuf,
}

pub(super) fn run(args: &Replay) -> Result<u8, Failure> {
    let history = read(&args.file)?;
    let report = check::check(&history);
    let judgement = Judgement::of(&history.header, &report);
    output::print(&format!("{}\n", Harmless(&picture::headline(&report))))?;
    Ok(judgement.outcome.code())
}

fn read(path: &Path) -> Result<History, Failure> {
    let history = if path.as_os_str() == "-" {
        History::read(io::stdin().lock())
    } else {
        File::open(path).map_err(Into::into).and_then(|file| History::read(BufReader::new(file)))
    };
    history.map_err(|error| {
        let message = format!("cannot read the history {}: {error:#}", path.display());
        Failure::new(exit::USAGE, message, "record one with `tenure lab run … --history FILE`")
    })
}
