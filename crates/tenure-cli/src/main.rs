//! The `tenure` program: parse, run, exit code. What it says is made in `output`, which code it
//! leaves with in `exit`, and each verb has a file in `commands`.

mod args;
mod commands;
mod exit;
mod failure;
mod output;
mod person;
mod runner;
mod store;
mod url_file;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Args;

fn main() -> ExitCode {
    let answer = match Args::try_parse() {
        Ok(args) => commands::run(args),
        Err(error) => output::refuse(&error),
    };
    match answer {
        Ok(code) => code.into(),
        Err(failure) => failure.tell().into(),
    }
}
