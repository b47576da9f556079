//! One file per verb, and the client that they share. `end_holder` belongs to `evict`.

mod completions;
mod doctor;
pub(crate) mod elect;
mod end_holder;
mod evict;
mod help;
mod hold;
#[cfg(feature = "lab")]
pub(crate) mod lab;
mod ls;
mod man;
mod run;
mod schema;
mod show;
mod wait;

use std::time::Duration;

use tenure::blocking;

use crate::args::{Args, Verb};
use crate::failure::Failure;
use crate::store::Store;

/// Runs a verb and returns the exit code.
pub(crate) fn run(args: Args) -> Result<u8, Failure> {
    let reach = args.reach;
    // Only for the verbs that need a store: help must not depend on a file.
    let store = || Store::find(args.url, reach);
    match args.verb {
        Verb::Run(args) => run::run(&store()?, reach, args),
        Verb::Hold(args) => hold::run(&store()?, args),
        Verb::Elect(args) => elect::run(&store()?, reach, args),
        Verb::Ls(args) => ls::run(&connect(&store()?)?, &args),
        Verb::Show(args) => show::run(&connect(&store()?)?, &args),
        Verb::Evict(args) => evict::run(&connect(&store()?)?, &args),
        Verb::Wait(args) => wait::run(&store()?, &args),
        Verb::Doctor(args) => doctor::run(&connect(&store()?)?, &args),
        #[cfg(feature = "lab")]
        Verb::Lab(args) => lab::run(args),
        Verb::Schema(args) => schema::run(&args),
        Verb::Completions(args) => completions::run(&args),
        Verb::Man(args) => man::run(&args),
        Verb::Help(args) => help::run(&args),
    }
}

/// The client of the verbs that do not wait: they fail at once if the server is down.
fn connect(store: &Store) -> Result<blocking::Client, Failure> {
    let config = store.config()?.outage(Duration::ZERO);
    config.connect_blocking().map_err(|error| store.source.name_in(error))
}
