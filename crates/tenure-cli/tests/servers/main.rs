//! The program on real servers: passwords, unreachable servers, and leases after a crash. Each case
//! starts its own servers; a case whose servers are not available is ignored, with the reason.

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
