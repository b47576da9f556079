//! The `tenure` program: parses the command line, runs a verb, and exits with its code.
//!
//! | module | job |
//! |---|---|
//! | `args` | the command line |
//! | `usage` | errors of the command line |
//! | `commands` | one file per verb |
//! | `completion` | what a shell offers when the user presses Tab |
//! | `runner` | `tenure run`: two processes, signals, the terminal |
//! | `store`, `url_file` | which URL is used, and where it comes from |
//! | `holder`, `output` | text and JSON for users |
//! | `failure`, `exit` | errors and exit codes |
//! | `waiting` | waiting for futures of the library |

mod args;
mod commands;
mod completion;
mod exit;
mod failure;
mod holder;
mod output;
mod runner;
mod store;
mod url_file;
mod usage;
mod waiting;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Args;

fn main() -> ExitCode {
    if let Some(code) = completion::respond() {
        return code.into();
    }
    let result = match Args::try_parse() {
        Ok(args) => commands::run(args),
        Err(error) => usage::refuse(&error),
    };
    match result {
        Ok(code) => code.into(),
        Err(failure) => failure.tell().into(),
    }
}
