//! `tenure evict --ask`: tells the holder of a lock to end.
//!
//! No server carries a message to a holder without ending its lock, so a holder is told by a
//! signal, which reaches the processes of this machine only.

use tenure::Holder;

use crate::exit;
use crate::failure::Failure;
use crate::holder::HolderLine;

const OTHERWISE: &str = "or evict it with --token N";

/// Sends TERM to the `tenure run` or `hold` that holds the lock, which ends its command and then
/// releases the lock.
#[cfg(target_os = "linux")]
pub(super) fn tell_to_end(holder: &Holder) -> Result<(), Failure> {
    use rustix::process::{Signal, pidfd_send_signal};

    let who = HolderLine(holder).to_string();
    let Some(runner) = crate::holder::Runner::of(holder) else {
        let advice = format!("end it by its own means, {OTHERWISE}");
        return Err(refused(
            holder,
            "is not a `tenure run` or `hold`, and cannot be asked",
            advice,
        ));
    };
    if holder.host != rustix::system::uname().nodename().to_string_lossy() {
        let advice = format!("the same command on that machine, {OTHERWISE}");
        let why = "is on another machine, and no server carries a signal to it";
        return Err(refused(holder, why, advice));
    }
    let launcher = linux::handle_of(runner).ok_or_else(|| {
        let advice = format!("look for it where it runs, {OTHERWISE}");
        refused(holder, "is not a process of this machine (or of this container)", advice)
    })?;
    pidfd_send_signal(&launcher, Signal::TERM).map_err(|error| {
        let why = format!("cannot send TERM to {who}: {}", std::io::Error::from(error));
        Failure::new(exit::DENIED, why, format!("do it as the user of that process, {OTHERWISE}"))
    })?;
    crate::output::say(&format_args!("sent TERM to {who}; waiting for the release"));
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub(super) fn tell_to_end(holder: &Holder) -> Result<(), Failure> {
    Err(refused(holder, "can be asked on Linux only", format!("end it itself, {OTHERWISE}")))
}

fn refused(holder: &Holder, why: &str, advice: String) -> Failure {
    Failure::new(exit::USAGE, format!("{} {why}", HolderLine(holder)), advice)
}

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::OwnedFd;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use crate::holder::Runner;

    /// A handle of the launcher, if both processes are there. The pids are what another client
    /// wrote, so both have to execute this program. The handle is made before the check: the
    /// process that was checked gets the signal, also if its number is used again.
    pub(super) fn handle_of(runner: Runner) -> Option<OwnedFd> {
        let launcher = Pid::from_raw(i32::try_from(runner.launcher).ok()?)?;
        let handle = pidfd_open(launcher, PidfdFlags::empty()).ok()?;
        let this = program("self")?;
        let [launcher, supervisor] = [runner.launcher, runner.supervisor].map(|n| n.to_string());
        let is_runner = parent(&supervisor)? == runner.launcher
            && program(&launcher)? == this
            && program(&supervisor)? == this;
        is_runner.then_some(handle)
    }

    /// The name of the program that a process executes.
    fn program(pid: &str) -> Option<String> {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()
    }

    fn parent(pid: &str) -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which may contain anything: the state, then the parent.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    }
}
