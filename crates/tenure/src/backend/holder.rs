//! Holder and waiters of a lock, as operators see them.

use std::fmt;
use std::time::Duration;

use super::{HolderInfo, Mode};
use crate::key::{Key, acts_on_a_terminal};
use crate::token::FencingToken;

/// The holder of a lock. Its texts come from another client: `Display` escapes them, the fields are
/// raw. With the feature `serde` it is the object `holder` in the JSON of `tenure run`.
///
/// # Examples
///
/// ```
/// use tenure::{backend::HolderInfo, Holder};
///
/// let holder = Holder::new(&HolderInfo::new("web-3", "host-a", 71, ""));
/// assert_eq!(holder.to_string(), "web-3 on host-a (pid 71)");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// The name that it gave itself (`?owner=` in its URL), or that of its program.
    #[doc(alias = "name")]
    pub owner: String,
    /// Host that it runs on.
    pub host: String,
    /// Its process id. A lock of `tenure run` is held by a process that ignores signals: this is
    /// the one to signal.
    pub pid: u32,
    /// Of a lock of `tenure run` or `tenure hold`: the process that holds it, a child of `pid`.
    pub supervisor: Option<u32>,
    /// Free text that it set with [`Lock::note`](crate::Lock::note), or `--note` of `tenure run`.
    pub note: String,
    /// How it holds the key.
    pub mode: Mode,
    /// Fencing token of its grant, if the server keeps it readable.
    pub token: Option<FencingToken>,
    /// For how long it has held the lock, by the server's clock.
    pub held_for: Option<Duration>,
    /// For how long the server keeps the lock without another renewal.
    pub ttl_left: Option<Duration>,
}

impl Holder {
    /// A holder of which only this is known.
    pub fn new(info: &HolderInfo) -> Holder {
        let (pid, note) = info.pid_and_note();
        Holder {
            owner: info.name().to_owned(),
            host: info.host().to_owned(),
            pid,
            supervisor: (info.pid() != pid).then(|| info.pid()),
            note: note.to_owned(),
            mode: Mode::Exclusive,
            token: None,
            held_for: None,
            ttl_left: None,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.owner.as_str() {
            "" => f.write_str("another")?,
            name => Harmless(name).fmt(f)?,
        }
        if !self.host.is_empty() {
            write!(f, " on {}", Harmless(&self.host))?;
        }
        if self.pid != 0 {
            write!(f, " (pid {})", self.pid)?;
        }
        if let Some(held_for) = self.held_for {
            write!(f, " for {:.1} s", held_for.as_secs_f64())?;
        }
        if !self.note.is_empty() {
            write!(f, ": {}", Harmless(&self.note))?;
        }
        Ok(())
    }
}

/// A client that waits for a lock. With the feature `serde` it is an entry of `waiting` in the JSON
/// of a [`Holding`].
///
/// # Examples
///
/// ```
/// use tenure::{backend::HolderInfo, Waiter};
///
/// let waiter = Waiter::new(&HolderInfo::new("web-4", "host-b", 8, ""));
/// assert_eq!(waiter.owner, "web-4");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiter {
    /// The name that it gave itself (`?owner=` in its URL), or that of its program.
    #[doc(alias = "name")]
    pub owner: String,
    /// Host that it runs on.
    pub host: String,
    /// Its process id; of `tenure run` the one to signal.
    pub pid: u32,
    /// How it wants to hold the key.
    pub mode: Mode,
    /// For how long it has waited, by the server's clock.
    pub waiting_for: Option<Duration>,
}

impl Waiter {
    /// A waiter of which only this is known.
    pub fn new(info: &HolderInfo) -> Waiter {
        Waiter {
            owner: info.name().to_owned(),
            host: info.host().to_owned(),
            pid: info.pid_and_note().0,
            mode: Mode::Exclusive,
            waiting_for: None,
        }
    }
}

/// One held key, for operators: its holders and its waiters in order. With the feature `serde` it
/// is the row that `tenure ls --json` and `tenure show --json` print.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("memory:?owner=web-3").await?;
/// let guard = locks.lock("orders/42").acquire().await?;
/// let holdings = locks.list("orders/").await?;
/// assert_eq!(holdings[0].holder().owner, "web-3");
/// assert_eq!(holdings[0].holder().token, Some(guard.token()));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Holding {
    /// Key of the lock.
    pub key: Key,
    /// Its holders, the oldest first; never empty, and of an exclusive lock only one.
    pub holders: Vec<Holder>,
    /// Its waiters, in the order in which they came.
    pub waiters: Vec<Waiter>,
}

impl Holding {
    /// A key with one holder and no waiters.
    pub fn new(key: Key, holder: Holder) -> Holding {
        Holding { key, holders: vec![holder], waiters: Vec::new() }
    }

    /// A key with these holders, the oldest first, and no waiters. `None` without any.
    pub fn of(key: Key, holders: Vec<Holder>) -> Option<Holding> {
        (!holders.is_empty()).then(|| Holding { key, holders, waiters: Vec::new() })
    }

    /// The holder; of several the oldest.
    pub fn holder(&self) -> &Holder {
        &self.holders[0]
    }
}

/// A text of another client, with everything escaped that could act on a terminal.
struct Harmless<'a>(&'a str);

impl fmt::Display for Harmless<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if acts_on_a_terminal(c) {
                write!(f, "{}", c.escape_unicode())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_cannot_write_to_the_terminal() {
        let holder = Holder::new(&HolderInfo::new("a\u{1b}[31m", "h\u{202e}", 1, "x\ny"));
        let shown = holder.to_string();
        assert!(!shown.contains(acts_on_a_terminal), "{shown:?}");
        assert!(shown.contains("\\u{1b}"), "{shown:?}");
    }
}
