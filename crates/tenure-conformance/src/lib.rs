//! One suite for every backend and every layer: [`CASES`](cases::all) ×
//! [`FIXTURES`](fixtures::all).
//!
//! A case is an `async fn(&TestContext) -> anyhow::Result<()>` whose name is a sentence that can be
//! false. It says what it needs, and runs against every fixture that has it. A fixture is one row
//! in [`fixtures`]; a case is one row in its module. Nothing else is listed by hand.
#![allow(clippy::unwrap_used, reason = "the cases are tests")]

pub mod cases;
pub mod certificates;
pub mod clock;
pub mod context;
pub mod fault;
pub mod fixtures;
pub mod java;
pub mod load;
pub mod network;
pub mod oracle;
pub mod peer;
pub mod trials;
