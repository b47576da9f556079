//! Who holds a lock, as people and scripts see it. A lock of `tenure run` is held by the keeper, a
//! process that ignores signals; whoever wants to end the job has to signal the front. So `run`
//! puts the front's pid into the note, and here it is read back.

use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};
use tenure::{Holder, Holding, Waiter};

use crate::output::{Harmless, Short};

/// The note of a lock that `tenure run` holds.
pub(crate) fn note(front: u32, text: &str) -> String {
    format!("{MARK}{front}] {text}").trim_end().to_owned()
}

/// The pid to signal and the text that the user gave.
fn read(holder: &Holder) -> (u32, &str) {
    let parse = || {
        let (pid, text) = holder.note.strip_prefix(MARK)?.split_once(']')?;
        Some((pid.parse().ok()?, text.strip_prefix(' ').unwrap_or(text)))
    };
    parse().unwrap_or((holder.pid, &holder.note))
}

/// One held key, as `--json` prints it. The names are a contract.
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
        let (pid, note) = read(holder);
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

    /// The same row with everyone who waits, first come first.
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

/// Who holds a lock, for the events of `run --json`.
pub(crate) fn event(holder: &Holder) -> Value {
    let (pid, note) = read(holder);
    json!({
        "owner": holder.name,
        "host": holder.host,
        "pid": pid,
        "token": holder.token.map(|token| token.get()),
        "note": note,
    })
}

/// A holder in one line of text.
pub(crate) struct Person<'a>(pub(crate) &'a Holder);

impl fmt::Display for Person<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pid, note) = read(self.0);
        write_person(f, &self.0.name, &self.0.host, pid)?;
        if !note.is_empty() {
            write!(f, ": {}", Harmless(note))?;
        }
        Ok(())
    }
}

/// A waiter in one line of text.
pub(crate) struct InLine<'a>(pub(crate) &'a Waiter);

impl fmt::Display for InLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_person(f, &self.0.name, &self.0.host, self.0.pid)?;
        match self.0.waiting_for {
            Some(waiting_for) => write!(f, ", for {}", Short(waiting_for)),
            None => Ok(()),
        }
    }
}

fn write_person(f: &mut fmt::Formatter<'_>, name: &str, host: &str, pid: u32) -> fmt::Result {
    f.write_str(if name.is_empty() { "another" } else { "" })?;
    write!(f, "{}", Harmless(name))?;
    if !host.is_empty() {
        write!(f, " on {}", Harmless(host))?;
    }
    if pid != 0 { write!(f, " (pid {pid})") } else { Ok(()) }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

const MARK: &str = "[run ";

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::backend::Note;

    #[test]
    fn the_pid_that_is_shown_is_the_one_to_signal() {
        for text in ["", "deploy of v42", "[x] y"] {
            let holder = Holder::new(&Note::new("sh", "h", 7, note(4711, text)));
            assert_eq!(read(&holder), (4711, text));
        }
    }

    #[test]
    fn a_note_of_others_is_left_alone() {
        for text in ["", "plain", "[run x] y", "[run 7"] {
            let holder = Holder::new(&Note::new("sh", "h", 7, text));
            assert_eq!(read(&holder), (7, text));
        }
    }
}
