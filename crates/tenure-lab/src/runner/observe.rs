//! What a scenario can see: the state of the lock at the server, and what was recorded so far.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tenure::Holding;
use tenure_servers::wire::redis::{self, Value};

use super::server_observer::ServerObserver;
use super::{LAB, Runner, SERVER, StepOutcome};
use crate::clock::nanos;
use crate::history::{Event, EventKind, Register};

/// How often the server is polled while it has to show something.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long a request may take to have its effect.
const EFFECT_LIMIT: Duration = Duration::from_secs(3);
/// Time for one request of a waiter.
const SETTLE_TIME: Duration = Duration::from_millis(50);
/// How long to wait for waiters that the server does not show.
const WAITER_LIMIT: Duration = Duration::from_millis(250);

impl Runner<'_> {
    /// Queries the server for the holder of the lock, and records the result: whether it is held.
    pub(crate) fn observe(&mut self) -> Result<bool> {
        Ok(self.holding()?.is_some())
    }

    /// Queries the server at another URL once, which creates the tables that the lock needs there.
    pub(crate) fn prepare_server(&self, url: &str) -> Result<()> {
        ServerObserver::open(self.lock, url, &self.key)?.holding().map(drop)
    }

    fn holding(&mut self) -> Result<Option<Holding>> {
        let observer = match self.observer.take() {
            Some(observer) => observer,
            None => ServerObserver::open(self.lock, &self.setup.direct_url(), &self.key)?,
        };
        let holding = observer.holding();
        self.observer = Some(observer);
        let holding = holding?;
        let holder = holding.as_ref().map(|holding| holding.holder().owner.clone());
        let left = holding.as_ref().and_then(|holding| holding.holder().ttl_left);
        let until = left.map(|left| self.clock.after(left));
        self.recorder.record(SERVER, EventKind::Seen { holder, until });
        Ok(holding)
    }

    /// Waits until the server shows the lock as held. It never does if the client needs a response
    /// before it sends the request that acquires the lock.
    pub(crate) fn wait_held(&mut self) -> Result<()> {
        let end = Instant::now() + EFFECT_LIMIT;
        while !self.observe()? {
            if Instant::now() >= end {
                self.note(LAB, "the request had no effect: a response was needed before it");
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits until the server shows the lock as free: whether it did within the limit.
    pub(crate) fn free_within(&mut self, limit: Duration) -> Result<bool> {
        let end = Instant::now() + limit;
        while self.observe()? {
            if Instant::now() >= end {
                return Ok(false);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(true)
    }

    /// Waits until the server shows a waiter, or a moment where it does not show waiters.
    pub(crate) fn wait_for_waiter(&mut self) -> Result<()> {
        let end = Instant::now() + WAITER_LIMIT;
        while Instant::now() < end && !self.has_waiter()? {
            std::thread::sleep(POLL_INTERVAL);
        }
        // A waiter that has subscribed tries once more before it waits.
        std::thread::sleep(SETTLE_TIME);
        Ok(())
    }

    fn has_waiter(&mut self) -> Result<bool> {
        let holding = self.holding()?;
        if holding.is_some_and(|holding| !holding.waiters.is_empty()) {
            return Ok(true);
        }
        if self.lock.name != "redis-watchdog" {
            return Ok(false);
        }
        let channel = format!("lab:{}", self.key);
        let port = self.setup.cluster()?.node().port();
        let response = redis::execute(port, &["PUBSUB", "NUMSUB", &channel])?;
        Ok(matches!(response, Value::List(parts) if matches!(parts.get(1), Some(Value::Int(1..)))))
    }

    /// When the server will end the lease by itself, as it says now.
    pub(crate) fn server_expiry(&mut self) -> Result<Option<u64>> {
        self.observe()?;
        let seen = |event: &Event| match event.kind {
            EventKind::Seen { until, .. } => Some(until),
            _ => None,
        };
        Ok(self.recorder.find_last(seen).flatten())
    }

    /// Evicts the holder, as an operator would.
    pub(crate) fn evict(&mut self, token: Option<u64>) -> Result<()> {
        self.observe()?;
        let observer = self.observer.as_ref().context("no connection to the server")?;
        ensure!(observer.evict(token.unwrap_or(1))?, "there was no holder to evict");
        Ok(())
    }

    /// The client checks its lock and reads, as its last step before a fault: whether it holds.
    pub(crate) fn still_holds(&mut self, name: &str) -> Result<bool> {
        Ok(self.read(name)? == StepOutcome::Done)
    }

    /// Waits until a client's lock was renewed more than a lease after that moment: whether it
    /// was, or was lost.
    pub(crate) fn renewed_past(&mut self, name: &str, moment: u64) -> Result<bool> {
        let hold = self.client(name)?.hold;
        let past = moment.saturating_add(nanos(self.lease));
        let decided = |event: &Event| match event.kind {
            EventKind::Renewed { hold: of, .. } if of == hold && event.at > past => Some(true),
            EventKind::Lost { hold: of, .. } if of == hold => Some(false),
            _ => None,
        };
        let renewed = self.recorder.wait_for(0, self.lease * 4, decided);
        renewed.with_context(|| format!("{name}'s lock is neither renewed nor lost"))
    }

    /// Waits until a client is notified, or finds out, that it lost its lock: whether it did
    /// within the limit.
    pub(crate) fn lost_within(&mut self, name: &str, limit: Duration) -> Result<bool> {
        let hold = self.client(name)?.hold;
        let lost =
            |event: &Event| matches!(event.kind, EventKind::Lost { hold: of, .. } if of == hold);
        let found = self.recorder.wait_for(0, limit, |event| lost(event).then_some(()));
        Ok(found.is_some())
    }

    /// When a client learned that it lost its lock.
    pub(crate) fn lost_at(&self, name: &str) -> Option<u64> {
        let hold = self.clients.get(name)?.hold;
        self.recorder.find_last(|event| match event.kind {
            EventKind::Lost { hold: of, .. } if of == hold => Some(event.at),
            _ => None,
        })
    }

    /// Moment and deadline of the last grant of a client.
    pub(crate) fn last_grant(&self, name: &str) -> Option<(u64, u64)> {
        let hold = self.clients.get(name)?.hold;
        self.recorder.find_last(|event| match event.kind {
            EventKind::Granted { hold: of, deadline, .. } if of == hold => {
                Some((event.at, deadline?))
            }
            _ => None,
        })
    }

    /// Token of the last grant of a client.
    pub(crate) fn token(&self, name: &str) -> Option<u64> {
        let hold = self.clients.get(name)?.hold;
        self.recorder.find_last(|event| match event.kind {
            EventKind::Granted { hold: of, token, .. } if of == hold => Some(token),
            _ => None,
        })?
    }

    /// Sleeps until this much is left of a client's lease, by the client's own deadline.
    pub(crate) fn sleep_until_left(&self, name: &str, left: Duration) -> Result<()> {
        let (_, deadline) = self.last_grant(name).context("the lock was not granted")?;
        let rest = deadline.saturating_sub(nanos(left)).saturating_sub(self.now());
        std::thread::sleep(Duration::from_nanos(rest));
        Ok(())
    }

    /// Whether an attempt was refused because its key is invalid.
    pub(crate) fn refused_as_invalid(&self, hold: u64) -> bool {
        self.refusal(hold).is_some_and(|why| !why.contains("held by"))
    }

    /// Why an attempt was refused, if it was.
    pub(crate) fn refusal(&self, hold: u64) -> Option<String> {
        self.recorder.find_last(|event| match &event.kind {
            EventKind::Refused { hold: of, why } if *of == hold => Some(why.clone()),
            _ => None,
        })
    }

    /// What the client that read last found in the register without a fence.
    pub(crate) fn plain_value(&self) -> u64 {
        self.recorder
            .find_last(|event| match event.kind {
                EventKind::Read { register: Register::Plain, value, .. } => Some(value),
                _ => None,
            })
            .unwrap_or(0)
    }

    /// Number of writes to the register without a fence.
    pub(crate) fn plain_writes(&self) -> usize {
        let is_plain_write = |event: &Event| {
            matches!(event.kind, EventKind::Wrote { register: Register::Plain, .. })
        };
        self.recorder.count(is_plain_write)
    }

    /// Records a figure of this run.
    pub(crate) fn measure(&mut self, name: &str, value: f64, unit: &str) {
        let (name, unit) = (name.to_owned(), unit.to_owned());
        self.recorder.record(LAB, EventKind::Measured { name, value, unit });
    }

    /// Records a remark.
    pub(crate) fn note(&self, lane: &str, text: &str) {
        self.recorder.record(lane, EventKind::Note { text: text.to_owned() });
    }
}
