//! `tenure completions`: a script with which a shell completes verbs and flags.

use clap::CommandFactory;

use crate::args::{Args, Completions};
use crate::exit;
use crate::failure::Failure;
use crate::output;

pub(super) fn run(args: &Completions) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "tenure", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(exit::DONE)
}
