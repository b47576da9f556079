//! The history of one run: every event of every process, on one clock, as lines of JSON.
//!
//! All processes of a run are on one machine and share one clock: nanoseconds of
//! `CLOCK_BOOTTIME`, counted from the start of the run. The order of effects on the protected
//! resource does not come from a clock: the resource numbers them itself.
//!
//! The names of fields and variants here are the file format. Files that were written by an earlier
//! version must stay readable, so that `Asked` (an acquire was requested) and `Unanswered` (there
//! was no response) keep their names.

use std::collections::HashMap;
use std::io::{BufRead, Write};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// The latest moment that a history may name, in nanoseconds: 146 years after its start. The sum
/// of two such moments does not overflow, which checkers and pictures rely on.
pub const LATEST: u64 = 1 << 62;
const TOO_LATE: &str = "a time that is more than 2^62 ns after the start of the run";

/// A whole run: its header, and its events in the order of time.
///
/// # Examples
///
/// ```
/// use tenure_lab::history::History;
///
/// let line = r#"{"scenario":"pause","lock":"redis-unique","server":"redis 7.0.15","seed":1,
///     "expected":"overlap","lanes":[{"name":"A","kind":"client"}],"about":"paused"}"#;
/// let history = History::read(line.replace('\n', "").as_bytes())?;
/// assert_eq!(history.header.scenario, "pause");
/// # anyhow::Ok(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// The first line.
    pub header: Header,
    /// All other lines, sorted by time.
    pub events: Vec<Event>,
}

/// What was run: the scenario, the lock, the server and the expected verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Name of the scenario, such as `pause`.
    pub scenario: String,
    /// One sentence about the scenario, shown above the picture.
    pub about: String,
    /// Name of the lock under test, such as `redis-unique`.
    pub lock: String,
    /// The server and its version, such as `redis 7.0.15`; empty for none.
    pub server: String,
    /// Seed of the random numbers; 0 where there are none.
    pub seed: u64,
    /// The verdict that is expected of this lock in this scenario, by name; several are separated
    /// by `|`.
    pub expected: String,
    /// The lease that clients request, in nanoseconds: the unit of "stuck for a lease". 0 for a
    /// lock without one.
    #[serde(default)]
    pub lease: u64,
    /// The participants, in the order of drawing.
    pub lanes: Vec<Lane>,
}

/// A participant of the run, which has its own lane in the picture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lane {
    /// Name of the participant in the events.
    pub name: String,
    /// Kind of the participant.
    pub kind: LaneKind,
}

/// The kinds of participants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaneKind {
    /// A process that acquires the lock and writes to the resource.
    Client,
    /// The lab itself, which injects the faults.
    Fault,
    /// The protected resource.
    Resource,
    /// The server that stores the locks.
    Server,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Nanoseconds since the start of the run.
    pub at: u64,
    /// Name of the participant that it happened to.
    pub lane: String,
    /// Kind of the event, with its details.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// The kinds of events.
///
/// `hold` is the number of an attempt to acquire the lock, unique in a run, which connects the
/// events of one attempt: asked, then granted, refused or unanswered; then renewed, lost or
/// released.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// A client requests the lock; from here to the outcome it waits.
    Asked {
        /// Number of the attempt.
        hold: u64,
        /// Key of the lock.
        key: String,
    },
    /// The lock was granted: from here on the client acts as the holder.
    Granted {
        /// Number of the attempt.
        hold: u64,
        /// The fencing token; none for a scheme without tokens.
        token: Option<u64>,
        /// The client's own deadline, on the run's clock; none where the scheme has none.
        deadline: Option<u64>,
    },
    /// The lock was not granted: it was busy, or the error excludes a grant.
    Refused {
        /// Number of the attempt.
        hold: u64,
        /// The reason.
        why: String,
    },
    /// Unknown outcome: there was no response, so the server may or may not have granted the lock.
    Unanswered {
        /// Number of the attempt.
        hold: u64,
        /// The error that the client saw.
        why: String,
    },
    /// The lease was renewed.
    Renewed {
        /// Number of the attempt.
        hold: u64,
        /// The new deadline.
        deadline: Option<u64>,
    },
    /// The client was notified, or found out, that it no longer holds.
    Lost {
        /// Number of the attempt.
        hold: u64,
        /// The reason.
        why: String,
    },
    /// The client begins to release: from here on it does not act as the holder.
    Releasing {
        /// Number of the attempt.
        hold: u64,
    },
    /// The release has ended.
    Released {
        /// Number of the attempt.
        hold: u64,
        /// Whether the client still held the lock; none if there was no response.
        own: Option<bool>,
    },
    /// A client read a register at the beginning of its work.
    Read {
        /// Number of the attempt.
        hold: u64,
        /// The register.
        register: Register,
        /// Position in the order of effects, given by the resource.
        seq: u64,
        /// The value of the register.
        value: u64,
        /// The token that the client presented.
        token: Option<u64>,
        /// Whether the register's fence refused it.
        refused: bool,
    },
    /// A client wrote a register at the end of its work: the value that it read, plus one.
    Wrote {
        /// Number of the attempt.
        hold: u64,
        /// The register.
        register: Register,
        /// Position in the order of effects, given by the resource.
        seq: u64,
        /// The value that was written.
        value: u64,
        /// The token that the client presented.
        token: Option<u64>,
        /// Whether the register's fence refused it.
        refused: bool,
        /// Whether the write was accepted although another holder wrote between this client's read
        /// and write, so that an update was lost.
        stale: bool,
    },
    /// The state of the lock at the server, as the lab's own connection sees it.
    Seen {
        /// Name of the holder; none if the lock is free. Empty where the server does not say.
        holder: Option<String>,
        /// When the server will end the lease by itself; none if it will not, or if the lock is
        /// free.
        until: Option<u64>,
    },
    /// A fault was injected.
    Fault {
        /// Number of the fault in the lab's catalogue, such as `F03`.
        id: String,
        /// Description, such as "A is stopped".
        text: String,
        /// Name of the participant that it hits.
        target: String,
        /// Whether it lasts until `Healed`.
        lasts: bool,
    },
    /// A fault that lasted has ended.
    Healed {
        /// Description.
        text: String,
        /// Name of the participant that it hit.
        target: String,
    },
    /// A process ended, by itself or killed by the lab.
    Ended {
        /// How it ended.
        how: String,
    },
    /// A figure of the run, such as the number of requests for one handoff.
    Measured {
        /// Name of the figure.
        name: String,
        /// Its value.
        value: f64,
        /// Its unit.
        unit: String,
    },
    /// Any other remark.
    Note {
        /// The remark.
        text: String,
    },
}

/// The three registers of the protected resource, side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Register {
    /// No fence: accepts every write.
    Plain,
    /// Fence on writes: refuses a write whose token is lower than that of an accepted write.
    Write,
    /// Fence on reads and writes: refuses a read or a write whose token is lower than one that it
    /// was shown.
    ReadWrite,
}

impl Register {
    /// All registers, in the order in which clients work through them.
    pub const ALL: [Register; 3] = [Register::Plain, Register::Write, Register::ReadWrite];
}

impl Event {
    /// The latest moment that the event names.
    fn latest(&self) -> u64 {
        let named = match self.kind {
            EventKind::Granted { deadline, .. } | EventKind::Renewed { deadline, .. } => deadline,
            EventKind::Seen { until, .. } => until,
            _ => None,
        };
        self.at.max(named.unwrap_or(0))
    }
}

impl History {
    /// Reads a history: the header's line, then one event on each line, in any order of time.
    ///
    /// # Errors
    ///
    /// If a line is not valid, or names a time after [`LATEST`], which no run reaches.
    pub fn read(input: impl BufRead) -> Result<History> {
        let mut lines = input
            .lines()
            .enumerate()
            .filter(|(_, line)| !matches!(line, Ok(line) if line.trim().is_empty()));
        let (_, first) = lines.next().context("an empty history")?;
        let header: Header =
            serde_json::from_str(&first?).context("line 1 is no header of a history")?;
        ensure!(header.lease <= LATEST, "line 1: {TOO_LATE}");
        let mut events = Vec::new();
        for (number, line) in lines {
            let event = serde_json::from_str(&line?);
            let event: Event = event.with_context(|| format!("line {} is no event", number + 1))?;
            ensure!(event.latest() <= LATEST, "line {}: {TOO_LATE}", number + 1);
            events.push(event);
        }
        Ok(History::new(header, events))
    }

    /// A history with these events, which are sorted by time.
    pub fn new(header: Header, mut events: Vec<Event>) -> History {
        events.sort_by_key(|event| event.at);
        History { header, events }
    }

    /// The spans in which each participant was under a fault that lasts or, with `after_end`, its
    /// process had ended. `end` closes the spans that never ended.
    pub(crate) fn outages(&self, end: u64, after_end: bool) -> HashMap<&str, Vec<(u64, u64)>> {
        let mut outages: HashMap<&str, Vec<(u64, u64)>> = HashMap::new();
        for event in &self.events {
            match &event.kind {
                EventKind::Fault { target, lasts: true, .. } => {
                    outages.entry(target).or_default().push((event.at, end));
                }
                EventKind::Ended { .. } if after_end => {
                    outages.entry(&event.lane).or_default().push((event.at, end));
                }
                EventKind::Healed { target, .. } => {
                    let spans = outages.entry(target).or_default();
                    if let Some(open) = spans.iter_mut().rev().find(|span| span.1 == end) {
                        open.1 = event.at;
                    }
                }
                _ => {}
            }
        }
        outages
    }

    /// Writes the history as lines of JSON.
    ///
    /// # Errors
    ///
    /// If the header has no scenario, or the output fails.
    pub fn write(&self, mut output: impl Write) -> Result<()> {
        ensure!(!self.header.scenario.is_empty(), "a history needs the name of its scenario");
        writeln!(output, "{}", serde_json::to_string(&self.header)?)?;
        for event in &self.events {
            writeln!(output, "{}", serde_json::to_string(event)?)?;
        }
        Ok(())
    }
}
