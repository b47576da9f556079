//! The lab: real faults on real servers, and a picture of what breaks which lock.
//!
//! A [cell] is one scenario on one lock. A run of it has processes of its own, and
//! everything that happens becomes one [`History`](history::History). Checkers and pictures know
//! nothing but histories, so that a recorded one can be checked and drawn again without a server.
//!
//! What is tested:
//!
//! - [`scenarios`]: the faults, and the table of expected verdicts.
//! - [`schemes`]: the locks under test, those of tenure and the hand-written ones.
//!
//! How a run is done:
//!
//! - [`cell`]: one run of a scenario on a lock, from the servers to the verdict.
//! - `runner`: starts the processes, gives them commands and injects the faults.
//! - [`roles`]: what the processes execute: clients and the protected resource.
//! - `registers`: the protected resource, with and without a fence.
//! - [`server_setup`]: the servers, and each client's proxies.
//! - `forwarder`: a server name that can be pointed at another server.
//! - `netns`: a network namespace in which packets can be dropped.
//! - `clock`: the clock of a run.
//! - `lease_events`: from the events of tenure's client to those of a history.
//!
//! What is made of it:
//!
//! - [`history`]: the file format.
//! - [`check`]: the checkers.
//! - [`verdict`]: one word for a run, compared with the expected one.
//! - [`picture`]: drawings for the browser and the terminal.
//! - [`matrix`]: the table of all cells.
//!
//! Besides:
//!
//! - [`simulation`]: the library's core on a virtual clock, with seeded faults.
//! - [`sync`]: a mutex without poison.

pub mod cell;
pub mod check;
mod clock;
mod forwarder;
pub mod history;
mod lease_events;
pub mod matrix;
mod netns;
pub mod picture;
mod registers;
pub mod roles;
mod runner;
pub mod scenarios;
pub mod schemes;
pub mod server_setup;
pub mod simulation;
pub mod sync;
#[cfg(test)]
mod test_history;
#[cfg(test)]
mod test_random;
pub mod verdict;
