//! `tenure run`: exit codes, signals, and every way in which command, keeper or front can die.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod at_least;
mod deaths;
mod loss;
mod outcome;
mod signals;
mod streams;
#[path = "../support/mod.rs"]
mod support;
