//! Who has a lock and who waits for it, for people.

use std::fmt;
use std::time::Duration;

use super::Note;
use crate::key::{Key, acts_on_a_terminal};
use crate::token::FencingToken;

/// Who has a lock. The texts are a stranger's: `Display` makes them harmless, the fields are raw.
///
/// # Examples
///
/// ```
/// use tenure::{backend::Note, Holder};
///
/// let holder = Holder::new(&Note::new("web-3", "host-a", 71, ""));
/// assert_eq!(holder.to_string(), "web-3 on host-a (pid 71)");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// The name it chose, or its program.
    pub name: String,
    /// Its machine.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Its free text.
    pub note: String,
    /// Its token, if the server keeps it where we can read it.
    pub token: Option<FencingToken>,
    /// For how long it has held the lock, by the server's clock.
    pub held_for: Option<Duration>,
    /// For how long the server keeps the lock without hearing from it.
    pub ttl_left: Option<Duration>,
}

impl Holder {
    /// A holder of whom no more is known than its note.
    pub fn new(note: &Note) -> Holder {
        Holder {
            name: note.name().to_owned(),
            host: note.host().to_owned(),
            pid: note.pid(),
            note: note.text().to_owned(),
            token: None,
            held_for: None,
            ttl_left: None,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
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

/// Somebody who waits for a lock.
///
/// # Examples
///
/// ```
/// use tenure::{backend::Note, Waiter};
///
/// let waiter = Waiter::new(&Note::new("web-4", "host-b", 8, ""));
/// assert_eq!(waiter.name, "web-4");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiter {
    /// The name it chose, or its program.
    pub name: String,
    /// Its machine.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// For how long it has waited, by the server's clock.
    pub waiting_for: Option<Duration>,
}

impl Waiter {
    /// A waiter of whom no more is known than its note.
    pub fn new(note: &Note) -> Waiter {
        let (name, host) = (note.name().to_owned(), note.host().to_owned());
        Waiter { name, host, pid: note.pid(), waiting_for: None }
    }
}

/// One held key, for people: its holder and its waiters in order.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("memory:?owner=web-3").await?;
/// let guard = locks.lock("orders/42").acquire().await?;
/// let holdings = locks.list("orders/").await?;
/// assert_eq!(holdings[0].holder.name, "web-3");
/// assert_eq!(holdings[0].holder.token, Some(guard.token()));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Holding {
    /// What is held.
    pub key: Key,
    /// By whom.
    pub holder: Holder,
    /// Who waits for it, first come first.
    pub waiters: Vec<Waiter>,
}

impl Holding {
    /// A key that nobody waits for.
    pub fn new(key: Key, holder: Holder) -> Holding {
        Holding { key, holder, waiters: Vec::new() }
    }
}

/// A stranger's text, with everything escaped that could act on a terminal.
struct Harmless<'a>(&'a str);

impl fmt::Display for Harmless<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match acts_on_a_terminal(c) {
                true => write!(f, "{}", c.escape_unicode())?,
                false => write!(f, "{c}")?,
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
        let holder = Holder::new(&Note::new("a\u{1b}[31m", "h\u{202e}", 1, "x\ny"));
        let shown = holder.to_string();
        assert!(!shown.contains(acts_on_a_terminal), "{shown:?}");
        assert!(shown.contains("\\u{1b}"), "{shown:?}");
    }
}
