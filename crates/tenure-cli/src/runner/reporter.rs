//! What `run` and `hold` write while they work: messages for users, or JSON events for programs.
//! The names in the JSON are a contract.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tenure::{Busy, Error, FencingToken, Key, LostReason};

use super::Job;
use crate::failure::{self, Failure};
use crate::holder::{HolderLine, millis};
use crate::output::{self, Harmless, Short};
use crate::store::{self, Source};

/// The shortest time between two messages about the wait: a queue that moves fast should not fill
/// the screen.
const WAIT_MESSAGE_INTERVAL: Duration = Duration::from_secs(2);

/// Writes messages or events about one job.
pub(super) struct Reporter {
    json: bool,
    /// Whether this is `tenure hold`: its stdout has no other user, so data and events go there.
    holds: bool,
    /// Whether stderr is a terminal, so that a user may read along.
    terminal: bool,
    /// Whether a user reads along, or requested the same messages without a terminal.
    read_along: bool,
    verbose: bool,
    key: Key,
    wait: Mutex<WaitReport>,
}

/// What was reported about the wait for the lock.
#[derive(Default)]
struct WaitReport {
    /// The latest cause of the wait, as text, and when it was reported.
    last: Option<(String, Instant)>,
    /// Whether the one message for a stderr that is no terminal was written.
    reported_once: bool,
}

/// Why a lock was lost or given up, for both forms of output.
pub(super) struct LossText {
    /// The field `reason` of the JSON event.
    pub(super) reason: &'static str,
    /// The end of the message.
    pub(super) text: &'static str,
}

impl LossText {
    pub(super) const MAX_HOLD: LossText =
        LossText { reason: "max_hold", text: "it was held for as long as --max-hold allows" };
    pub(super) const NOT_RENEWED: LossText =
        LossText { reason: "doubt", text: "it could not be renewed in time" };
    pub(super) const OTHER: LossText = LossText { reason: "other", text: "it is gone" };
}

impl From<LostReason> for LossText {
    fn from(lost: LostReason) -> LossText {
        let text = match lost {
            LostReason::Evicted => "it was evicted",
            LostReason::Expired => "its lease ended before it could be renewed",
            LostReason::SessionGone => "the server ended the session that held it",
            LostReason::TakenOver => "another client holds it now",
            _ => return LossText::OTHER,
        };
        LossText { reason: lost.as_str(), text }
    }
}

impl Reporter {
    pub(super) fn new(job: &Job) -> Reporter {
        let terminal = std::io::stderr().is_terminal();
        Reporter {
            json: job.json,
            holds: job.command.is_none(),
            terminal,
            read_along: terminal || job.verbose,
            verbose: job.verbose && !job.json,
            key: job.key.clone(),
            wait: Mutex::default(),
        }
    }

    /// With --verbose: where the lock lives, without what may be secret.
    pub(super) fn begin(&self, job: &Job) {
        if self.verbose {
            let source = match &job.source {
                Source::Given => "given by --url or TENURE_URL".to_owned(),
                Source::File(file) => format!("in `{}`", file.display()),
                Source::Default => "not given, so this is the store of one machine".to_owned(),
            };
            let scheme = store::scheme(&job.url);
            let message = format!("acquiring `{}` in `{scheme}:`; the URL is {source}", self.key);
            output::say(&Harmless(&message));
        }
    }

    /// No URL was given. A user at a terminal knows that; a cron job may be started on three
    /// machines, and its author should read once that they do not exclude each other.
    pub(super) fn default_store(&self) {
        if !self.terminal && !self.verbose {
            let store = "no URL is given: this lock excludes the processes of this machine only";
            self.warn(&format!("{store} (name a server, or `sqlite:` to silence this)"));
        }
    }

    /// Another client holds the lock. Called with every busy response; reported when the holder
    /// has changed.
    pub(super) fn waiting(&self, busy: &Busy) {
        let name = holder_name(busy);
        if !self.is_new_cause(&format!(", held by {name}")) {
            return;
        }
        if self.json {
            let details = json!({"holder": busy.holder, "ahead": busy.ahead, "reason": null});
            self.event("waiting", details);
        } else if self.read_along {
            output::say(&format_args!("waiting for `{}`, held by {name}", self.key));
        }
    }

    /// The wait is not for a holder: the server is unreachable, or cannot grant any lock yet. No
    /// release ends such a wait, so it is reported at once, also where stderr is no terminal.
    pub(super) fn unavailable(&self, cause: &Error) {
        let cause = failure::describe(cause);
        let text = format!(": {}", Harmless(&cause));
        if !self.is_new_cause(&text) {
            return;
        }
        if self.json {
            let details = json!({"holder": null, "ahead": null, "reason": cause});
            self.event("waiting", details);
        } else if self.read_along {
            output::say(&format_args!("waiting for `{}`{text}", self.key));
        } else {
            self.report_wait_once();
        }
    }

    /// The wait has become long: it is reported once also where stderr is no terminal.
    pub(super) fn still_waiting(&self) {
        if !self.json && !self.read_along {
            self.report_wait_once();
        }
    }

    fn report_wait_once(&self) {
        let mut wait = self.wait.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((text, _)) = wait.last.as_ref().filter(|_| !wait.reported_once) {
            output::say(&format_args!("waiting for `{}`{text}", self.key));
            wait.reported_once = true;
        }
    }

    /// Remembers the cause of the wait. Returns whether it differs from the last one.
    fn is_new_cause(&self, text: &str) -> bool {
        let mut wait = self.wait.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = match &wait.last {
            Some((known, at)) => known != text && at.elapsed() >= WAIT_MESSAGE_INTERVAL,
            None => true,
        };
        if is_new {
            wait.last = Some((text.to_owned(), Instant::now()));
        }
        is_new
    }

    pub(super) fn acquired(&self, token: FencingToken, waited: Duration) {
        if self.json {
            let details = json!({"token": token.get(), "waited_ms": millis(waited)});
            self.event("acquired", details);
            return;
        }
        if self.verbose {
            let (key, waited) = (&self.key, Short(waited));
            output::say(&format_args!("acquired `{key}` (token {token}) after {waited}"));
        }
        if self.holds {
            // A reader that has closed the pipe does not need the token.
            let _stdout_closed = output::print(&format!("{token}\n"));
            if self.read_along {
                output::say(&format_args!("holding `{}`, until Ctrl-C or Ctrl-D", self.key));
            }
        }
    }

    /// The lock was released.
    pub(super) fn released(&self) {
        if self.verbose {
            output::say(&format_args!("released `{}`", self.key));
        }
    }

    /// The lock was not granted within the wait limit.
    pub(super) fn busy(&self, busy: &Busy) {
        if self.json {
            self.event("busy", json!({"holder": busy.holder, "ahead": busy.ahead}));
            return;
        }
        output::say(&format_args!("`{}` is busy, held by {}", self.key, holder_name(busy)));
        output::advise(&"wait longer with --wait, or see `tenure show KEY`");
    }

    /// The lock is lost or cannot be kept. The command is being ended for it, or has ended already.
    pub(super) fn lost(&self, token: FencingToken, loss: &LossText) {
        if self.json {
            self.event("lost", json!({"token": token.get(), "reason": loss.reason}));
        } else {
            output::say(&format_args!("lost `{}` (token {token}): {}", self.key, loss.text));
        }
    }

    /// The command has ended, and the lock is kept for some time (`--at-least`).
    pub(super) fn kept(&self, code: u8, left: Duration) {
        if self.json {
            self.event("kept", json!({"code": code, "left_ms": millis(left)}));
        } else if self.read_along {
            let key = &self.key;
            let left = Short(left);
            let what = format_args!("the command has ended; `{key}` is kept for another {left}");
            output::say(&format_args!("{what} (Ctrl-C leaves that to the background)"));
        }
    }

    /// Reports a problem that does not change the exit code.
    pub(super) fn warn(&self, message: &str) {
        if self.json {
            self.event("warning", json!({"message": message}));
        } else {
            output::say(&Harmless(message));
        }
    }

    pub(super) fn failed(&self, failure: &Failure) {
        if self.json {
            self.event("error", json!({"message": failure.message, "try": failure.advice}));
        } else {
            failure.tell();
        }
    }

    /// The last JSON event of a job.
    pub(super) fn exit(&self, code: u8, cause: &str) {
        if self.json {
            self.event("exit", json!({"code": code, "cause": cause}));
        }
    }

    fn event(&self, name: &str, details: Value) {
        let time = output::utc(SystemTime::now());
        let mut line = json!({"event": name, "key": self.key.as_str(), "time": time});
        if let (Some(line), Value::Object(details)) = (line.as_object_mut(), details) {
            line.extend(details);
        }
        let line = format!("{}\n", output::json(&line));
        if self.holds {
            let _stdout_closed = output::print(&line);
        } else {
            let _stderr_closed = std::io::stderr().lock().write_all(line.as_bytes());
        }
    }
}

fn holder_name(busy: &Busy) -> String {
    let holder = busy.holder.as_deref();
    holder.map_or_else(|| "another".to_owned(), |holder| HolderLine(holder).to_string())
}
