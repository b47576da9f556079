//! `tenure completions`: a script with which a shell completes verbs, flags, keys and commands. It
//! calls this program for them, see `completion`.

use clap_complete::env::Shells;

use crate::args::Completions;
use crate::completion::VARIABLE;
use crate::exit;
use crate::failure::Failure;
use crate::output;

pub(super) fn run(args: &Completions) -> Result<u8, Failure> {
    let mut script = Vec::new();
    if let Some(shell) = Shells::builtins().completer(&args.shell.to_string()) {
        shell.write_registration(VARIABLE, "tenure", "tenure", "tenure", &mut script)?;
    }
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(exit::DONE)
}
