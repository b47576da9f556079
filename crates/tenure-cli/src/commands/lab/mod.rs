//! `tenure lab`: what breaks which lock, shown. One file per verb of the group.

mod replay;

use clap::Subcommand;

use crate::failure::Failure;

/// See what breaks which lock: real faults, and a picture of what happened
///
/// Exit code: 0 measured is expected, also "broken as expected"; 1 it differs; 2 inconclusive; 3
/// skipped.
#[derive(Debug, clap::Args)]
pub(crate) struct Lab {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Replay(replay::Replay),
}

pub(super) fn run(args: Lab) -> Result<u8, Failure> {
    match args.verb {
        Verb::Replay(args) => replay::run(&args),
    }
}
