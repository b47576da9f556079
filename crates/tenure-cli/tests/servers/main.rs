//! The program on real servers: passwords, servers that are down, and what they keep of a lock.
//! Each case has servers of its own; where they cannot be had it is ignored, with the reason.

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
