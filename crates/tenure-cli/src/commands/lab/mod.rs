//! `tenure lab`: what breaks which lock, with pictures. One file per verb of the group;
//! `comparison` belongs to `run`.

mod comparison;
mod list;
mod matrix;
mod play;
mod replay;
mod run;
mod simulate;

use std::path::PathBuf;

use clap::Subcommand;

use crate::exit;
use crate::failure::Failure;

/// See what breaks which lock: real faults, and a picture of what happened
///
/// Exit code: 0 the verdict is as expected, also where that is a broken lock; 1 it differs; 2
/// inconclusive; 3 skipped.
#[derive(Debug, clap::Args)]
pub(crate) struct Lab {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    List(list::List),
    Run(run::Run),
    Matrix(matrix::Matrix),
    Replay(replay::Replay),
    Simulate(simulate::Simulate),
    #[command(hide = true)]
    Play(play::Play),
}

pub(super) fn run(args: Lab) -> Result<u8, Failure> {
    match args.verb {
        Verb::List(args) => list::run(&args),
        Verb::Run(args) => run::run(&args),
        Verb::Matrix(args) => matrix::run(&args),
        Verb::Play(args) => play::run(&args),
        Verb::Replay(args) => replay::run(&args),
        Verb::Simulate(args) => simulate::run(&args),
    }
}

/// A failure of the lab itself, which says nothing about a lock.
fn failed(what: &str, error: &anyhow::Error) -> Failure {
    let advice = "try again; if it stays, please report it with this message";
    Failure::new(exit::INTERNAL, format!("{what}: {error:#}"), advice)
}

/// A name of a scenario or lock that does not exist.
fn unknown(error: &anyhow::Error) -> Failure {
    Failure::new(exit::USAGE, error.to_string(), "see `tenure lab list`")
}

/// This program, which the lab starts again for the clients.
fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::system("find this program", error))
}
