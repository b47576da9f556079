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

use tenure::{Config, blocking};

use crate::args::{Args, Verb};
use crate::failure::Failure;

/// Does what was asked for and gives the exit code.
pub(crate) fn run(args: Args) -> Result<u8, Failure> {
    // An empty TENURE_URL is how scripts say "none".
    let url = args.url.filter(|url| !url.is_empty());
    let url = url.as_deref().unwrap_or(DEFAULT_URL);
    match args.verb {
        Verb::Run(args) => run::run(url, args),
        Verb::Ls(args) => ls::run(&connect(url)?, &args),
        Verb::Show(args) => show::run(&connect(url)?, &args),
        Verb::Evict(args) => evict::run(&connect(url)?, &args),
        Verb::Wait(args) => wait::run(url, &args),
        Verb::Doctor(args) => doctor::run(&connect(url)?, &args),
        #[cfg(feature = "lab")]
        Verb::Lab(args) => lab::run(args),
        Verb::Schema(args) => schema::run(&args),
        Verb::Completions(args) => completions::run(&args),
        Verb::Man(args) => man::run(&args),
        Verb::Help(args) => help::run(&args),
    }
}

fn connect(url: &str) -> Result<blocking::Client, Failure> {
    Ok(url.parse::<Config>()?.connect_blocking()?)
}

/// The embedded store in the user's state folder: works with nothing installed.
const DEFAULT_URL: &str = "sqlite:";
