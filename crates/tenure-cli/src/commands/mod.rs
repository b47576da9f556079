//! One file per verb, and what they share: the client.

mod completions;
mod doctor;
mod evict;
mod help;
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

/// Does what was asked for and gives the exit code.
pub(crate) fn run(args: Args) -> Result<u8, Failure> {
    let (url, reach) = (args.url, args.reach);
    // Only where it is needed: help must not depend on a file.
    let store = || Store::find(url, reach);
    match args.verb {
        Verb::Run(args) => run::run(&store()?, reach, args),
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

/// For the verbs that look: they say at once that a server is down.
fn connect(store: &Store) -> Result<blocking::Client, Failure> {
    let config = store.config()?.outage(Duration::ZERO);
    config.connect_blocking().map_err(|error| store.source.name_in(error))
}
