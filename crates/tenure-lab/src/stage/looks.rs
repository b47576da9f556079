//! What the conductor sees: the server from outside, and what was said so far.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tenure::Holding;
use tenure_servers::wire::redis::{self, Value};

use super::observer::Observer;
use super::{Answer, FAULT, PATIENCE, SERVER, Stage};
use crate::history::{Event, Register, What};

impl Stage<'_> {
    /// Asks the server who holds the lock, and writes the answer down.
    pub(crate) fn look(&mut self) -> Result<bool> {
        Ok(self.holding()?.is_some())
    }

    /// Looks once by another URL, which makes the tables that a server has to have.
    pub(crate) fn prepare(&self, url: &str) -> Result<()> {
        Observer::open(self.lock, url, &self.key)?.look().map(drop)
    }

    fn holding(&mut self) -> Result<Option<Holding>> {
        let observer = match self.observer.take() {
            Some(observer) => observer,
            None => Observer::open(self.lock, &self.rig.direct(), &self.key)?,
        };
        let seen = observer.look();
        self.observer = Some(observer);
        let seen = seen?;
        let until = |left| self.clock.after(left);
        let holder = seen.as_ref().map(|holding| holding.holder.name.clone());
        let until = seen.as_ref().and_then(|holding| holding.holder.ttl_left).map(until);
        self.recorder.note(SERVER, What::Seen { holder, until });
        Ok(seen)
    }

    /// Waits until the server shows the lock as held. A client whose first answer has to come
    /// before it asks for the lock never gets that far.
    pub(crate) fn wait_held(&mut self) -> Result<()> {
        let end = Instant::now() + EFFECT;
        while !self.look()? {
            if Instant::now() >= end {
                self.remark(FAULT, "the request had no effect: an answer was needed before it");
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Waits until the server shows the lock as free; whether it did in that time.
    pub(crate) fn freed_within(&mut self, limit: Duration) -> Result<bool> {
        let end = Instant::now() + limit;
        while self.look()? {
            if Instant::now() >= end {
                return Ok(false);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(true)
    }

    /// Waits until somebody is seen waiting, where that can be seen; else a moment.
    pub(crate) fn wait_waiting(&mut self) -> Result<()> {
        let end = Instant::now() + MOMENT;
        while Instant::now() < end && !self.someone_waits()? {
            std::thread::sleep(LOOK_EVERY);
        }
        // One who subscribes looks once more, then waits.
        std::thread::sleep(SETTLE);
        Ok(())
    }

    fn someone_waits(&mut self) -> Result<bool> {
        let seen = self.holding()?;
        if seen.is_some_and(|holding| !holding.waiters.is_empty()) {
            return Ok(true);
        }
        if self.lock.name != "redis-watchdog" {
            return Ok(false);
        }
        let channel = format!("lab:{}", self.key);
        let port = self.rig.cluster()?.node().port();
        let answer = redis::ask(port, &["PUBSUB", "NUMSUB", &channel])?;
        Ok(matches!(answer, Value::List(parts) if matches!(parts.get(1), Some(Value::Int(1..)))))
    }

    /// Waits until the last ask of a client is granted, for as long as the run's limit; a client
    /// that is told of an error asks again. Writes down now and then what the server says.
    pub(crate) fn obtain(&mut self, name: &str) -> Result<bool> {
        let end = Instant::now() + self.limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.answer_within(name, left.min(self.lease / 4))? {
                Some(Answer::Granted { .. }) => return Ok(true),
                _ if left.is_zero() => return Ok(false),
                Some(_) => drop(self.ask(name, None)?),
                // A server that is down has nothing to say.
                None => drop(self.look()),
            }
        }
    }

    /// The token of the grant that a client got last.
    pub(crate) fn token(&self, name: &str) -> Option<u64> {
        let hold = self.actors.get(name)?.hold;
        self.recorder.last(|event| match event.what {
            What::Granted { hold: of, token, .. } if of == hold => Some(token),
            _ => None,
        })?
    }

    /// When a client learned that it lost its lock.
    pub(crate) fn lost_at(&self, name: &str) -> Option<u64> {
        let hold = self.actors.get(name)?.hold;
        self.recorder.last(|event| match event.what {
            What::Lost { hold: of, .. } if of == hold => Some(event.at),
            _ => None,
        })
    }

    /// Whether an ask was refused for its name.
    pub(crate) fn said_invalid(&self, hold: u64) -> bool {
        let why = self.why_refused(hold);
        why.is_some_and(|why| !why.contains("held by") && !why.contains("somebody else"))
    }

    /// Why an ask was refused, if it was.
    pub(crate) fn why_refused(&self, hold: u64) -> Option<String> {
        self.recorder.last(|event| match &event.what {
            What::Refused { hold: of, why } if *of == hold => Some(why.clone()),
            _ => None,
        })
    }

    /// Waits until one of these asks is granted: which one.
    pub(crate) fn wait_granted(&mut self, asks: &[(&str, u64)]) -> Result<Option<usize>> {
        let place = |event: &Event| match event.what {
            What::Granted { hold, .. } => asks.iter().position(|(_, of)| *of == hold),
            _ => None,
        };
        Ok(self.recorder.wait(0, PATIENCE, place))
    }

    /// Takes the lock away from its holder, as an operator would.
    pub(crate) fn evict(&mut self, token: Option<u64>) -> Result<()> {
        self.look()?;
        let observer = self.observer.as_ref().context("nobody looks")?;
        match observer.evict(token.unwrap_or(1))? {
            true => Ok(()),
            false => bail!("there was nothing to take away"),
        }
    }

    /// A figure of this run.
    pub(crate) fn measure(&mut self, name: &str, value: f64, unit: &str) {
        let (name, unit) = (name.to_owned(), unit.to_owned());
        self.recorder.note(FAULT, What::Measured { name, value, unit });
    }

    /// Something worth a mark.
    pub(crate) fn remark(&self, lane: &str, text: &str) {
        self.recorder.note(lane, What::Note { text: text.to_owned() });
    }

    /// What the client that read last found in the register without a fence.
    pub(crate) fn plain_value(&self) -> u64 {
        self.recorder
            .last(|event| match event.what {
                What::Read { register: Register::Plain, value, .. } => Some(value),
                _ => None,
            })
            .unwrap_or(0)
    }

    /// How many writes the register without a fence took.
    pub(crate) fn sales(&self) -> usize {
        let sale =
            |event: &Event| matches!(event.what, What::Wrote { register: Register::Plain, .. });
        self.recorder.count(sale)
    }

    /// Now, on the run's clock.
    pub(crate) fn now(&self) -> u64 {
        self.clock.now()
    }
}

/// How often the server is looked at while waiting for it to show something.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long a request may take to have its effect.
const EFFECT: Duration = Duration::from_secs(3);
/// Time for one question of a waiter.
const SETTLE: Duration = Duration::from_millis(50);
/// For waiters that nobody can see.
const MOMENT: Duration = Duration::from_millis(250);
