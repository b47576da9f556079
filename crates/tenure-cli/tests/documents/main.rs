//! The pages stay true: every command that README and guides show is run, on the embedded store or
//! on real servers, the units and manifests are checked, and README's first program is built in a
//! folder of its own.
//!
//! A block of commands begins with `console`. What may follow in its info string:
//!
//! | | |
//! |---|---|
//! | `server=redis` | it needs that server: its URLs of that kind are replaced by the real one |
//! | `held=KEY` | that lock is held by another process while the block runs |
//! | `exit=75` | its last command ends with that code |
//! | `output=example` | what it shows is one possible output; otherwise it is compared |
//! | `no-run="reason"` | it cannot be run here, and is shown as ignored with the reason |

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../support/mod.rs"]
mod support;

#[cfg(target_os = "linux")]
mod console;
#[cfg(target_os = "linux")]
mod inline;
#[cfg(target_os = "linux")]
mod markdown;
#[cfg(target_os = "linux")]
mod program;
#[cfg(target_os = "linux")]
mod services;

#[cfg(target_os = "linux")]
fn main() {
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads.get_or_insert(2);
    let pages = markdown::pages();
    let mut trials = console::trials(&pages);
    trials.extend(services::trials(&pages));
    trials.push(inline::trial(&pages));
    trials.push(program::trial(&pages));
    libtest_mimic::run(&arguments, trials).exit();
}

#[cfg(not(target_os = "linux"))]
fn main() {}
