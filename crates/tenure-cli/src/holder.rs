//! How holders and waiters of a lock are shown as text. As JSON they are what the library makes of
//! them with its feature `serde`, so that a service and the program show the same.

use std::fmt;

use tenure::{Holder, Holding, Mode, Waiter};

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

/// All holders of a key in one line: the oldest, and how many others there are.
pub(crate) struct HoldersLine<'a>(pub(crate) &'a Holding);

impl fmt::Display for HoldersLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = u32::try_from(self.0.holders.len()).unwrap_or(u32::MAX);
        write!(f, "{}{}", HolderLine(self.0.holder()), others(count))
    }
}

/// What follows on the name of one of so many holders.
pub(crate) fn others(holders: u32) -> String {
    match holders {
        0 | 1 => String::new(),
        2 => " and 1 other".to_owned(),
        n => format!(" and {} others", n - 1),
    }
}

/// How a key is held: of permits also how many are out, and how many there may be.
pub(crate) struct ModeOf<'a>(pub(crate) &'a Holding);

impl fmt::Display for ModeOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0.holder().mode {
            mode @ Mode::Permits { of, .. } => {
                let out: u32 = self.0.holders.iter().map(|holder| holder.mode.weight()).sum();
                format!("{} {out}/{of}", mode.name())
            }
            mode => mode.name().to_owned(),
        };
        f.pad(&text)
    }
}

/// A waiter in one line of text.
pub(crate) struct WaiterLine<'a>(pub(crate) &'a Waiter);

impl fmt::Display for WaiterLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_client(f, &self.0.owner, &self.0.host, self.0.pid)?;
        if let Some(waiting_for) = self.0.waiting_for {
            write!(f, ", for {}", Short(waiting_for))?;
        }
        match self.0.mode {
            Mode::Exclusive => Ok(()),
            mode => write!(f, ", {mode}"),
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
