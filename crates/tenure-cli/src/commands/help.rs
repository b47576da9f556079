//! `tenure help`: the program, a verb, or the exit codes.

use clap::{Command, CommandFactory};

use crate::args::{Args, Help};
use crate::exit;
use crate::failure::Failure;
use crate::output::{self, Harmless};

pub(super) fn run(args: &Help) -> Result<u8, Failure> {
    let mut program = Args::command();
    program.build();
    match args.topic.as_deref() {
        None => output::print(&program.render_long_help().to_string())?,
        Some("exit-codes") => output::print(&exit::table())?,
        Some(topic) => output::print(&verb(&program, topic)?.render_long_help().to_string())?,
    }
    Ok(exit::DONE)
}

/// Finds the definition of a verb, by its name or alias.
pub(super) fn verb(program: &Command, name: &str) -> Result<Command, Failure> {
    program.find_subcommand(name).cloned().ok_or_else(|| {
        let message = format!("there is no help on `{}`", Harmless(name));
        let advice = "run, hold, elect, ls, show, evict, wait, doctor, lab, schema, completions, \
                      man, help, exit-codes";
        Failure::new(exit::USAGE, message, advice)
    })
}
