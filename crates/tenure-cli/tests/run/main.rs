//! `tenure run`: exit codes, signals, and every way in which command, supervisor or launcher
//! can die.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod at_least;
mod loss;
mod outcome;
mod process_failures;
mod signals;
mod streams;
#[path = "../support/mod.rs"]
mod support;
