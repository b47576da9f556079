//! The packages of `cargo xtask dist` install with the tools that they are for, offline, and the
//! program runs from each. They are made of the binary that all tests run; a tool that is missing
//! shows as ignored, with the reason, and is a failure where it is required.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../support/mod.rs"]
mod support;

#[cfg(target_os = "linux")]
mod cases;

#[cfg(target_os = "linux")]
fn main() {
    cases::main();
}

#[cfg(not(target_os = "linux"))]
fn main() {}
