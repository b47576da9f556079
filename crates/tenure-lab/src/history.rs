//! What happened in one run: every event of every process, on one clock, as lines of JSON.
//!
//! All processes of a run live on one machine, so one clock serves all: nanoseconds of
//! `CLOCK_BOOTTIME`, counted from the start of the run. The order of effects on the protected
//! resource does not come from a clock at all: the resource numbers them itself.

use std::io::{BufRead, Write};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// A whole run: what was played, and what happened, in the order of time.
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

/// What was played.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Name of the scenario, such as `pause`.
    pub scenario: String,
    /// One sentence about it, for people.
    pub about: String,
    /// Name of the lock under test, such as `redis-unique`.
    pub lock: String,
    /// The server and its version, such as `redis 7.0.15`; empty for none.
    pub server: String,
    /// What chance was drawn from.
    pub seed: u64,
    /// The verdict that the catalogue expects, by its name.
    pub expected: String,
    /// The lease that clients ask for, in nanoseconds: what "stuck for a lease" is measured by. 0
    /// for a lock that has none.
    #[serde(default)]
    pub lease: u64,
    /// Who takes part, in the order of drawing.
    pub lanes: Vec<Lane>,
}

/// One who takes part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lane {
    /// What events call it.
    pub name: String,
    /// What it is.
    pub kind: Kind,
}

/// The kinds of those who take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A process that takes the lock and writes to the resource.
    Client,
    /// The lab itself, which injects the faults.
    Fault,
    /// The protected resource.
    Resource,
    /// A server that locks are kept on.
    Server,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When: nanoseconds since the start of the run.
    pub at: u64,
    /// To whom, or where: the name of a lane.
    pub lane: String,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// The kinds of events.
///
/// `hold` numbers the attempts to take the lock over all clients of a run, so that the events of
/// one attempt can be found: asked, then granted, refused or unanswered; then renewed, lost,
/// released.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// A client asks for the lock; from here to the answer it waits.
    Asked {
        /// The attempt.
        hold: u64,
        /// The lock's key, when a run has more than one.
        key: String,
    },
    /// A client believes that it holds.
    Granted {
        /// The attempt.
        hold: u64,
        /// The fencing token; none for schemes that have none.
        token: Option<u64>,
        /// Until when the client may believe so, on the run's clock; none where the scheme has no
        /// deadline of its own.
        deadline: Option<u64>,
    },
    /// The lock was not given: busy, or an error that says surely not.
    Refused {
        /// The attempt.
        hold: u64,
        /// Why.
        why: String,
    },
    /// No answer: the server may or may not have given the lock.
    Unanswered {
        /// The attempt.
        hold: u64,
        /// What was seen.
        why: String,
    },
    /// The lease was extended.
    Renewed {
        /// The attempt.
        hold: u64,
        /// The new deadline.
        deadline: Option<u64>,
    },
    /// The client was told, or found out, that it no longer holds.
    Lost {
        /// The attempt.
        hold: u64,
        /// Why.
        why: String,
    },
    /// The client begins to give back: from here on it does not act as a holder.
    Releasing {
        /// The attempt.
        hold: u64,
    },
    /// The answer to giving back.
    Released {
        /// The attempt.
        hold: u64,
        /// Whether it was still its own; none if nobody answered.
        own: Option<bool>,
    },
    /// A client read a register of the resource at the beginning of its work.
    Read {
        /// The attempt.
        hold: u64,
        /// Which register.
        register: Register,
        /// The order of effects, given by the resource.
        seq: u64,
        /// What stood there.
        value: u64,
        /// The token that was shown.
        token: Option<u64>,
        /// Refused by the register's fence.
        refused: bool,
    },
    /// A client wrote a register at the end of its work: what it read, plus one.
    Wrote {
        /// The attempt.
        hold: u64,
        /// Which register.
        register: Register,
        /// The order of effects, given by the resource.
        seq: u64,
        /// What was written.
        value: u64,
        /// The token that was shown.
        token: Option<u64>,
        /// Refused by the register's fence.
        refused: bool,
        /// Accepted, though another holder's write came between this one's read and write: an
        /// update was lost.
        stale: bool,
    },
    /// What the server says of the lock, as the lab sees it from outside: who holds it, and until
    /// when.
    Seen {
        /// The client whose lock it is, if the server tells and the lab knows it.
        holder: Option<String>,
        /// When the server will give it up by itself, if it ever does.
        until: Option<u64>,
    },
    /// A fault begins, or happens at once.
    Fault {
        /// Its number in the catalogue, such as `F03`.
        id: String,
        /// In words, such as "A is stopped".
        text: String,
        /// Whom it hits: the name of a lane.
        target: String,
        /// Whether it goes on until it is `Healed`.
        lasts: bool,
    },
    /// A fault that lasted ends.
    Healed {
        /// In words.
        text: String,
        /// Whom it hit.
        target: String,
    },
    /// A process ended, by itself or killed.
    Ended {
        /// How.
        how: String,
    },
    /// A figure that the verdict rests on, such as the commands that a hand-over costs.
    Measured {
        /// What was measured.
        name: String,
        /// The figure.
        value: f64,
        /// Its unit.
        unit: String,
    },
    /// Anything else worth a mark.
    Note {
        /// The words.
        text: String,
    },
}

/// The three registers of the protected resource, side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Register {
    /// No fence: takes every write.
    Plain,
    /// Refuses a write whose token is older than the last one written with.
    Write,
    /// Shown the token at the first read, and refuses older ones on read and write.
    ReadWrite,
}

/// The latest moment that a history may name, in nanoseconds: 146 years after its start. Sums of
/// two such moments still are numbers of this kind, so that checkers and pictures can reckon.
pub const LATEST: u64 = 1 << 62;
const TOO_LATE: &str = "a time that is more than 2^62 ns after the start of the run";

impl Event {
    /// The latest moment that it names.
    fn latest(&self) -> u64 {
        let named = match self.what {
            What::Granted { deadline, .. } | What::Renewed { deadline, .. } => deadline,
            What::Seen { until, .. } => until,
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
    /// If a line is none of these, or names a time after [`LATEST`]: no run is that long.
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

    /// A history of these events, put in the order of time.
    pub fn new(header: Header, mut events: Vec<Event>) -> History {
        events.sort_by_key(|event| event.at);
        History { header, events }
    }

    /// Writes it as lines of JSON.
    pub fn write(&self, mut output: impl Write) -> Result<()> {
        ensure!(!self.header.scenario.is_empty(), "a history needs the name of its scenario");
        writeln!(output, "{}", serde_json::to_string(&self.header)?)?;
        for event in &self.events {
            writeln!(output, "{}", serde_json::to_string(event)?)?;
        }
        Ok(())
    }
}
