//! What `run` says on stderr while it works: lines for people, or JSON lines for machines. The
//! names in the JSON are a contract.

use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tenure::{Busy, Error, FencingToken, Key, LostReason};

use crate::failure::{self, Failure};
use crate::output::{self, Harmless, Short};
use crate::person::{self, Person};

pub(super) struct Talk {
    json: bool,
    /// Whether a person may be looking.
    terminal: bool,
    key: Key,
    waiting: Mutex<Waiting>,
}

/// What there is to say about the wait for the lock.
#[derive(Default)]
struct Waiting {
    /// What it is for, as text, and since when that is known.
    last: Option<(String, Instant)>,
    /// Whether it was said where there is no terminal.
    told: bool,
}

impl Talk {
    pub(super) fn new(json: bool, key: &Key) -> Talk {
        use std::io::IsTerminal;
        let terminal = std::io::stderr().is_terminal();
        Talk { json, terminal, key: key.clone(), waiting: Mutex::default() }
    }

    /// Nobody named a store. A person at a terminal knows that; a job of cron may be started on
    /// three machines, and its author should read once that they do not exclude each other.
    pub(super) fn default_store(&self) {
        if !self.terminal {
            let store = "no URL is given: this lock excludes the processes of this machine only";
            self.warn(&format!("{store} (name a server, or `sqlite:` to silence this)"));
        }
    }

    /// Somebody else has the lock. Called with every busy answer; said when there is something new.
    pub(super) fn waiting(&self, busy: &Busy) {
        let holder = busy.holder.as_deref();
        let who = holder.map_or_else(|| "another".to_owned(), |holder| Person(holder).to_string());
        if !self.is_news(&format!(", held by {who}")) {
            return;
        }
        if self.json {
            let holder = holder.map(person::event);
            let details = json!({"holder": holder, "ahead": busy.ahead, "reason": null});
            self.event("waiting", details);
        } else if self.terminal {
            output::say(&format_args!("waiting for `{}`, held by {who}", self.key));
        }
    }

    /// The wait is not for a holder: the server does not answer, or cannot grant anything yet. A
    /// wait that nobody can end by releasing is said at once, also without a terminal.
    pub(super) fn unavailable(&self, cause: &Error) {
        let cause = failure::describe(cause);
        let text = format!(": {}", Harmless(&cause));
        if !self.is_news(&text) {
            return;
        }
        if self.json {
            let details = json!({"holder": null, "ahead": null, "reason": cause});
            self.event("waiting", details);
        } else if self.terminal {
            output::say(&format_args!("waiting for `{}`{text}", self.key));
        } else {
            self.tell_once();
        }
    }

    /// The wait has become long: said once also where there is no terminal.
    pub(super) fn still_waiting(&self) {
        if !self.json && !self.terminal {
            self.tell_once();
        }
    }

    fn tell_once(&self) {
        let Ok(mut waiting) = self.waiting.lock() else { return };
        if let Some((text, _)) = waiting.last.as_ref().filter(|_| !waiting.told) {
            output::say(&format_args!("waiting for `{}`{text}", self.key));
            waiting.told = true;
        }
    }

    /// Remembers what the wait is for. Whether that is something else than before.
    fn is_news(&self, text: &str) -> bool {
        let Ok(mut waiting) = self.waiting.lock() else { return false };
        let is_news = match &waiting.last {
            Some((known, said)) => known != text && said.elapsed() >= AT_MOST_EVERY,
            None => true,
        };
        if is_news {
            waiting.last = Some((text.to_owned(), Instant::now()));
        }
        is_news
    }

    pub(super) fn acquired(&self, token: FencingToken, waited: Duration) {
        if self.json {
            let waited = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            self.event("acquired", json!({"token": token.get(), "waited_ms": waited}));
        }
    }

    /// Patience is over.
    pub(super) fn busy(&self, busy: &Busy) {
        let holder = busy.holder.as_deref();
        if self.json {
            self.event("busy", json!({"holder": holder.map(person::event), "ahead": busy.ahead}));
            return;
        }
        let who = holder.map_or_else(|| "another".to_owned(), |holder| Person(holder).to_string());
        output::say(&format_args!("`{}` is busy, held by {who}", self.key));
        output::advise("wait longer with --wait, or see `tenure show KEY`");
    }

    /// The lock is lost or cannot be kept. The command is ended for it, or has ended already.
    pub(super) fn lost(&self, token: FencingToken, reason: &str, why: &str) {
        if self.json {
            self.event("lost", json!({"token": token.get(), "reason": reason}));
        } else {
            output::say(&format_args!("lost `{}` (token {token}): {why}", self.key));
        }
    }

    /// The command has ended, and the lock is kept for a while yet.
    pub(super) fn kept(&self, code: u8, left: Duration) {
        if self.json {
            let left = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            self.event("kept", json!({"code": code, "left_ms": left}));
        } else if self.terminal {
            let (key, left) = (&self.key, Short(left));
            let what = format_args!("the command has ended; `{key}` is kept for another {left}");
            output::say(&format_args!("{what} (Ctrl-C leaves that to the background)"));
        }
    }

    /// Something that does not change the exit code.
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

    /// The last line.
    pub(super) fn exit(&self, code: u8, cause: &str) {
        if self.json {
            self.event("exit", json!({"code": code, "cause": cause}));
        }
    }

    fn event(&self, name: &str, details: Value) {
        use std::io::Write;
        let (key, time) = (self.key.as_str(), output::utc(SystemTime::now()));
        let mut line = json!({"event": name, "key": key, "time": time});
        if let (Some(line), Value::Object(details)) = (line.as_object_mut(), details) {
            line.extend(details);
        }
        let _gone = writeln!(std::io::stderr().lock(), "{}", output::json(&line));
    }
}

/// The words for the reasons, in JSON and in text.
pub(super) fn reason(reason: LostReason) -> (&'static str, &'static str) {
    match reason {
        LostReason::Evicted => ("evicted", "it was evicted"),
        LostReason::Expired => ("expired", "its lease ended before it could be renewed"),
        LostReason::SessionGone => ("session_gone", "the server ended the session it hung on"),
        LostReason::TakenOver => ("taken_over", "somebody else holds it now"),
        _ => ("other", "it is gone"),
    }
}

/// A queue that moves fast should not fill the screen.
const AT_MOST_EVERY: Duration = Duration::from_secs(2);
