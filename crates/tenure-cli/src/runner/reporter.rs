//! What `run` and `hold` write while they work: messages for users, or JSON events for programs.
//! The names in the JSON are a contract.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tenure::{Busy, Error, FencingToken, GuardSet, Key, Lease, Lost, LostReason, Mode};

use super::Job;
use crate::failure::{self, Failure};
use crate::holder::{HolderLine, millis, others};
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
    /// In the order of the command line.
    keys: Vec<Key>,
    /// How the job is called, if it is not about a lock: `leading` and so on.
    elects: bool,
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

/// A lock that was lost or given up.
pub(super) struct Loss {
    /// Which one; `None` if it is all of several.
    of: Option<(Key, FencingToken)>,
    pub(super) why: LossText,
}

impl Loss {
    pub(super) fn new(lease: Option<&Lease>, why: LossText) -> Loss {
        Loss { of: lease.map(|lease| (lease.key().clone(), lease.token())), why }
    }
}

impl From<Lost> for Loss {
    fn from(lost: Lost) -> Loss {
        Loss { of: Some((lost.key().clone(), lost.token())), why: lost.reason().into() }
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
            keys: job.keys.clone(),
            elects: job.elects,
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
            let names = self.names();
            let message = format!("acquiring {names} in `{scheme}:`; the URL is {source}");
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
        let text = format!("`{}`, {}", busy.key, self.held_by(busy));
        if !self.is_new_cause(&text) {
            return;
        }
        if self.json {
            let details = json!({"holder": busy.holder, "ahead": busy.ahead, "reason": null});
            self.event("waiting", Some(&busy.key), details);
        } else if self.read_along {
            output::say(&format_args!("waiting for {text}"));
        }
    }

    /// The wait is not for a holder: the server is unreachable, or cannot grant any lock yet. No
    /// release ends such a wait, so it is reported at once, also where stderr is no terminal.
    pub(super) fn unavailable(&self, cause: &Error) {
        let cause = failure::describe(cause);
        let text = format!("{}: {}", self.names(), Harmless(&cause));
        if !self.is_new_cause(&text) {
            return;
        }
        if self.json {
            let details = json!({"holder": null, "ahead": null, "reason": cause});
            self.event("waiting", None, details);
        } else if self.read_along {
            output::say(&format_args!("waiting for {text}"));
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

    /// The keys, as in a sentence.
    fn names(&self) -> String {
        let names: Vec<_> = self.keys.iter().map(|key| format!("`{key}`")).collect();
        names.join(", ")
    }

    /// The key, if it is only one.
    fn only_key(&self) -> Option<&Key> {
        self.keys.first().filter(|_| self.keys.len() == 1)
    }

    fn held_by(&self, busy: &Busy) -> String {
        let holder = busy.holder.as_deref();
        let name = holder.map_or("another".to_owned(), |holder| HolderLine(holder).to_string());
        let others = others(busy.holders);
        if self.elects { format!("led by {name}") } else { format!("held by {name}{others}") }
    }

    fn report_wait_once(&self) {
        let mut wait = self.wait.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((text, _)) = wait.last.as_ref().filter(|_| !wait.reported_once) {
            output::say(&format_args!("waiting for {text}"));
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

    pub(super) fn acquired(&self, held: &GuardSet, waited: Duration) {
        let tokens: Vec<_> = self.keys.iter().filter_map(|key| token_of(held, key)).collect();
        let mode = held.leases().next().map_or(Mode::Exclusive, Lease::mode);
        if self.json {
            let numbers: Vec<_> = tokens.iter().map(|token| token.get()).collect();
            let token = self.only_key().and(numbers.first());
            let mut details =
                json!({"token": token, "mode": mode.name(), "waited_ms": millis(waited)});
            if self.keys.len() > 1 {
                details["tokens"] = json!(numbers);
            }
            self.event("acquired", None, details);
            return;
        }
        let tokens = tokens.iter().map(ToString::to_string).collect::<Vec<_>>();
        if self.verbose {
            let (names, waited) = (self.names(), Short(waited));
            let tokens = tokens.join(", ");
            let what = if self.elects { "leading" } else { "acquired" };
            output::say(&format_args!("{what} {names} (token {tokens}) after {waited}"));
        }
        if self.holds {
            // A reader that has closed the pipe does not need the token.
            let _stdout_closed = output::print(&format!("{}\n", tokens.join("\n")));
            if self.read_along {
                output::say(&format_args!("holding {}, until Ctrl-C or Ctrl-D", self.names()));
            }
        }
    }

    /// The lock was released.
    pub(super) fn released(&self) {
        if self.verbose {
            output::say(&format_args!("released {}", self.names()));
        }
    }

    /// The lock was not granted within the wait limit.
    pub(super) fn busy(&self, busy: &Busy) {
        if self.json {
            let details = json!({"holder": busy.holder, "ahead": busy.ahead});
            self.event("busy", Some(&busy.key), details);
            return;
        }
        output::say(&format_args!("`{}` is busy, {}", busy.key, self.held_by(busy)));
        output::advise(&"wait longer with --wait, or see `tenure show KEY`");
    }

    /// The lock is lost or cannot be kept. The command is being ended for it, or has ended already.
    pub(super) fn lost(&self, loss: &Loss) {
        let (key, token) = (loss.of.as_ref().map(|of| &of.0), loss.of.as_ref().map(|of| of.1));
        if self.json {
            let token = token.map(FencingToken::get);
            self.event("lost", key, json!({"token": token, "reason": loss.why.reason}));
            return;
        }
        let text = loss.why.text;
        match &loss.of {
            Some((key, token)) => {
                output::say(&format_args!("lost `{key}` (token {token}): {text}"));
            }
            None => output::say(&format_args!("lost {}: {text}", self.names())),
        }
    }

    /// The command has ended, and the lock is kept for some time (`--at-least`).
    pub(super) fn kept(&self, code: u8, left: Duration) {
        if self.json {
            self.event("kept", None, json!({"code": code, "left_ms": millis(left)}));
        } else if self.read_along {
            let (names, left) = (self.names(), Short(left));
            let what = format_args!("the command has ended; {names} is kept for another {left}");
            output::say(&format_args!("{what} (Ctrl-C leaves that to the background)"));
        }
    }

    /// Reports a problem that does not change the exit code.
    pub(super) fn warn(&self, message: &str) {
        if self.json {
            self.event("warning", None, json!({"message": message}));
        } else {
            output::say(&Harmless(message));
        }
    }

    pub(super) fn failed(&self, failure: &Failure) {
        if self.json {
            self.event("error", None, json!({"message": failure.message, "try": failure.advice}));
        } else {
            failure.tell();
        }
    }

    /// The last JSON event of a job.
    pub(super) fn exit(&self, code: u8, cause: &str) {
        if self.json {
            self.event("exit", None, json!({"code": code, "cause": cause}));
        }
    }

    /// Writes an event about one of the locks, or about the whole job.
    fn event(&self, name: &str, key: Option<&Key>, details: Value) {
        let time = output::utc(SystemTime::now());
        let key = key.or_else(|| self.only_key()).map(Key::as_str);
        let mut line = json!({"event": name, "key": key, "time": time});
        if self.keys.len() > 1 {
            line["keys"] = self.keys.iter().map(Key::as_str).collect();
        }
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

/// The token of this lock, of permits too: there it serves `evict` only.
fn token_of(held: &GuardSet, key: &Key) -> Option<FencingToken> {
    held.leases().find(|lease| lease.key() == key).map(Lease::token)
}
