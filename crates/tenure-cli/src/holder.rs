//! How holders and waiters of a lock are shown as text. As JSON they are what the library makes of
//! them with its feature `serde`, so that a service and the program show the same.

use std::fmt;

use tenure::{Holder, Waiter};

use crate::output::{Harmless, Short};

/// The two processes of a `tenure run` or `hold` that holds a lock.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Runner {
    pub(crate) launcher: u32,
    /// Its child, which holds the lock.
    pub(crate) supervisor: u32,
}

#[cfg(target_os = "linux")]
impl Runner {
    /// `None` if another program holds the lock.
    pub(crate) fn of(holder: &Holder) -> Option<Runner> {
        holder.supervisor.map(|supervisor| Runner { launcher: holder.pid, supervisor })
    }
}

/// A holder in one line of text.
pub(crate) struct HolderLine<'a>(pub(crate) &'a Holder);

impl fmt::Display for HolderLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holder = self.0;
        write_client(f, &holder.owner, &holder.host, holder.pid)?;
        if !holder.note.is_empty() {
            write!(f, ": {}", Harmless(&holder.note))?;
        }
        Ok(())
    }
}

/// A waiter in one line of text.
pub(crate) struct WaiterLine<'a>(pub(crate) &'a Waiter);

impl fmt::Display for WaiterLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_client(f, &self.0.owner, &self.0.host, self.0.pid)?;
        match self.0.waiting_for {
            Some(waiting_for) => write!(f, ", for {}", Short(waiting_for)),
            None => Ok(()),
        }
    }
}

fn write_client(f: &mut fmt::Formatter<'_>, owner: &str, host: &str, pid: u32) -> fmt::Result {
    f.write_str(if owner.is_empty() { "another" } else { "" })?;
    write!(f, "{}", Harmless(owner))?;
    if !host.is_empty() {
        write!(f, " on {}", Harmless(host))?;
    }
    if pid != 0 { write!(f, " (pid {pid})") } else { Ok(()) }
}

/// A duration in milliseconds, for JSON.
pub(crate) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
