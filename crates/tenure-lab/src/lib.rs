//! The lab: real faults on real servers, and a picture of what breaks which lock.
//!
//! A run is played by processes of their own; everything that happens becomes one
//! [`History`](history::History). Checkers and pictures know nothing but histories, so that a
//! recorded one can be checked and drawn again without any server.

pub mod check;
mod detour;
pub mod history;
pub mod matrix;
mod network;
pub mod picture;
pub mod rig;
pub mod run;
pub mod scenarios;
pub mod schemes;
#[cfg(test)]
mod script;
pub mod simulation;
pub mod stage;
pub mod verdict;
