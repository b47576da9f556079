//! How holders and waiters of a lock are shown, as text and as JSON. A lock of `tenure run` is held
//! by its supervisor, a process that ignores signals; to end the job, an operator has to signal its
//! launcher. So `run` writes the launcher's pid into the note, and this module reads it back.

use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};
use tenure::{Holder, Holding, Waiter};

use crate::output::{Harmless, Short};

/// The start of the note of a lock that `tenure run` holds; the pid follows.
const NOTE_PREFIX: &str = "[run ";

/// The note of a lock that `tenure run` holds: the pid of its launcher, and the user's text.
pub(crate) fn note(launcher: u32, text: &str) -> String {
    format!("{NOTE_PREFIX}{launcher}] {text}").trim_end().to_owned()
}

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
        let (launcher, _) = pid_and_note(holder);
        let supervisor = holder.pid;
        (launcher != supervisor).then_some(Runner { launcher, supervisor })
    }
}

/// The pid to signal, and the note that the user gave.
fn pid_and_note(holder: &Holder) -> (u32, &str) {
    let parse = || {
        let (pid, text) = holder.note.strip_prefix(NOTE_PREFIX)?.split_once(']')?;
        Some((pid.parse().ok()?, text.strip_prefix(' ').unwrap_or(text)))
    };
    parse().unwrap_or((holder.pid, &holder.note))
}

/// One held key, as `ls --json` and `show --json` print it. The names are a contract.
#[derive(Serialize)]
pub(crate) struct Row<'a> {
    key: &'a str,
    owner: &'a str,
    host: &'a str,
    pid: u32,
    token: Option<u64>,
    ttl_left_ms: Option<u64>,
    held_for_ms: Option<u64>,
    waiters: usize,
    note: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<Vec<WaitingRow<'a>>>,
}

#[derive(Serialize)]
struct WaitingRow<'a> {
    owner: &'a str,
    host: &'a str,
    pid: u32,
    waiting_for_ms: Option<u64>,
}

impl<'a> Row<'a> {
    pub(crate) fn new(holding: &'a Holding) -> Row<'a> {
        let holder = &holding.holder;
        let (pid, note) = pid_and_note(holder);
        Row {
            key: holding.key.as_str(),
            owner: &holder.name,
            host: &holder.host,
            pid,
            token: holder.token.map(|token| token.get()),
            ttl_left_ms: holder.ttl_left.map(millis),
            held_for_ms: holder.held_for.map(millis),
            waiters: holding.waiters.len(),
            note,
            waiting: None,
        }
    }

    /// Adds the waiters to the row, in the order of the queue.
    pub(crate) fn with_waiting(self, holding: &'a Holding) -> Row<'a> {
        let row = |waiter: &'a Waiter| WaitingRow {
            owner: &waiter.name,
            host: &waiter.host,
            pid: waiter.pid,
            waiting_for_ms: waiter.waiting_for.map(millis),
        };
        Row { waiting: Some(holding.waiters.iter().map(row).collect()), ..self }
    }
}

/// The holder of a lock, for the events of `run --json`.
pub(crate) fn event(holder: &Holder) -> Value {
    let (pid, note) = pid_and_note(holder);
    json!({
        "owner": holder.name,
        "host": holder.host,
        "pid": pid,
        "token": holder.token.map(|token| token.get()),
        "note": note,
    })
}

/// A holder in one line of text.
pub(crate) struct HolderLine<'a>(pub(crate) &'a Holder);

impl fmt::Display for HolderLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pid, note) = pid_and_note(self.0);
        write_client(f, &self.0.name, &self.0.host, pid)?;
        if !note.is_empty() {
            write!(f, ": {}", Harmless(note))?;
        }
        Ok(())
    }
}

/// A waiter in one line of text.
pub(crate) struct WaiterLine<'a>(pub(crate) &'a Waiter);

impl fmt::Display for WaiterLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_client(f, &self.0.name, &self.0.host, self.0.pid)?;
        match self.0.waiting_for {
            Some(waiting_for) => write!(f, ", for {}", Short(waiting_for)),
            None => Ok(()),
        }
    }
}

fn write_client(f: &mut fmt::Formatter<'_>, name: &str, host: &str, pid: u32) -> fmt::Result {
    f.write_str(if name.is_empty() { "another" } else { "" })?;
    write!(f, "{}", Harmless(name))?;
    if !host.is_empty() {
        write!(f, " on {}", Harmless(host))?;
    }
    if pid != 0 { write!(f, " (pid {pid})") } else { Ok(()) }
}

/// A duration in milliseconds, for JSON.
pub(crate) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::backend::HolderInfo;

    #[test]
    fn the_launchers_pid_is_read_from_the_note() {
        for text in ["", "deploy of v42", "[x] y"] {
            let holder = Holder::new(&HolderInfo::new("sh", "h", 7, note(4711, text)));
            assert_eq!(pid_and_note(&holder), (4711, text));
        }
    }

    #[test]
    fn a_note_of_another_program_is_not_changed() {
        for text in ["", "plain", "[run x] y", "[run 7"] {
            let holder = Holder::new(&HolderInfo::new("sh", "h", 7, text));
            assert_eq!(pid_and_note(&holder), (7, text));
        }
    }
}
