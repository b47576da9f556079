//! What a scenario lets clients do, and how it waits for the outcome.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::{EVENT_LIMIT, Runner, note_of};
use crate::history::{Event, EventKind};
use crate::roles::protocol::{ClientCommand, DONE, FAILED, STOPPED};

/// The outcome of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AcquireOutcome {
    Granted,
    Refused,
    /// Unknown: there was no response.
    NoResponse,
}

impl AcquireOutcome {
    pub(crate) fn is_granted(&self) -> bool {
        *self == AcquireOutcome::Granted
    }
}

/// The outcome of a step of a client's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepOutcome {
    Done,
    /// The client knew that its lock was lost, and skipped the step.
    Stopped,
}

impl Runner<'_> {
    /// A client begins to acquire the lock, with this limit to its waiting. Returns the number of
    /// the attempt; the outcome is waited for with another method.
    pub(crate) fn acquire(&mut self, name: &str, limit: Option<Duration>) -> Result<u64> {
        let key = self.key.clone();
        self.acquire_key(name, &key, limit)
    }

    /// A client begins to acquire the lock of another key.
    pub(crate) fn acquire_key(
        &mut self,
        name: &str,
        key: &str,
        limit: Option<Duration>,
    ) -> Result<u64> {
        self.send_acquire(name, key, limit, false)
    }

    /// A client begins to acquire the lock for one lease that is not renewed.
    pub(crate) fn acquire_fixed(&mut self, name: &str) -> Result<u64> {
        let key = self.key.clone();
        self.send_acquire(name, &key, None, true)
    }

    fn send_acquire(
        &mut self,
        name: &str,
        key: &str,
        limit: Option<Duration>,
        fixed_lease: bool,
    ) -> Result<u64> {
        self.holds += 1;
        let hold = self.holds;
        self.client(name)?.hold = hold;
        let key = key.to_owned();
        let wait_limit_ms = limit.map(|limit| limit.as_millis() as u64);
        let command = ClientCommand::Acquire { hold, key, wait_limit_ms, fixed_lease };
        self.send(name, &command)?;
        let requested =
            |event: &Event| matches!(event.kind, EventKind::Asked { hold: of, .. } if of == hold);
        let since = self.client(name)?.since;
        let begun =
            self.recorder.wait_for(since, EVENT_LIMIT, |event| requested(event).then_some(()));
        begun.with_context(|| format!("{name} did not request the lock"))?;
        Ok(hold)
    }

    /// Sends a command to a client, and remembers where its events begin in the record.
    pub(super) fn send(&mut self, name: &str, command: &ClientCommand) -> Result<()> {
        let position = self.recorder.position();
        let client = self.client(name)?;
        client.since = position;
        client.send(command)
    }

    /// Waits for the outcome of a client's last acquire; none if there is none in that time.
    pub(crate) fn outcome_within(
        &mut self,
        name: &str,
        limit: Duration,
    ) -> Result<Option<AcquireOutcome>> {
        let hold = self.client(name)?.hold;
        // From the beginning of the record: the outcome may be there already.
        Ok(self.recorder.wait_for(0, limit, |event| outcome_of(event, hold)))
    }

    /// Waits for the outcome of a client's last acquire.
    pub(crate) fn outcome(&mut self, name: &str) -> Result<AcquireOutcome> {
        let outcome = self.outcome_within(name, EVENT_LIMIT)?;
        outcome.with_context(|| format!("{name}'s acquire has no outcome after {EVENT_LIMIT:?}"))
    }

    /// A client tries once to acquire the lock, without waiting for it.
    pub(crate) fn try_acquire(&mut self, name: &str) -> Result<AcquireOutcome> {
        self.acquire(name, Some(Duration::ZERO))?;
        self.outcome(name)
    }

    /// A client acquires the lock, waits until it is granted, and reads the registers.
    pub(crate) fn acquire_and_read(&mut self, name: &str) -> Result<()> {
        self.acquire(name, None)?;
        self.expect_grant(name)?;
        self.read(name).map(drop)
    }

    /// A client acquires and releases the lock once, so that everything is connected and
    /// prepared. A hand-written scheme needs only the connection, for which another key will do.
    pub(crate) fn warm_up(&mut self, name: &str) -> Result<()> {
        let suffix = if self.lock.is_tenure() { "" } else { "-warm" };
        let key = format!("{}{suffix}", self.key);
        self.acquire_key(name, &key, None)?;
        self.expect_grant(name)?;
        self.release(name).map(drop)
    }

    /// Waits for the outcome of a client's last acquire, which has to be a grant.
    pub(crate) fn expect_grant(&mut self, name: &str) -> Result<()> {
        match self.outcome(name)? {
            AcquireOutcome::Granted => Ok(()),
            AcquireOutcome::Refused => {
                let hold = self.client(name)?.hold;
                let why = self.refusal(hold).unwrap_or_default();
                bail!("{name} did not get the lock: {why}")
            }
            AcquireOutcome::NoResponse => bail!("{name} did not get the lock: no response"),
        }
    }

    /// A client reads the three registers, if it still holds as far as it knows.
    pub(crate) fn read(&mut self, name: &str) -> Result<StepOutcome> {
        let hold = self.client(name)?.hold;
        self.send(name, &ClientCommand::Read { hold })?;
        self.wait_for_step(name)
    }

    /// A client checks whether it still holds, and writes what it read plus one.
    pub(crate) fn write(&mut self, name: &str) -> Result<StepOutcome> {
        let hold = self.client(name)?.hold;
        self.send(name, &ClientCommand::Write { hold, unchecked: false })?;
        self.wait_for_step(name)
    }

    /// A client writes without a check: its last check was just before the fault.
    pub(crate) fn write_unchecked(&mut self, name: &str) -> Result<StepOutcome> {
        let hold = self.client(name)?.hold;
        self.send(name, &ClientCommand::Write { hold, unchecked: true })?;
        self.wait_for_step(name)
    }

    fn wait_for_step(&mut self, name: &str) -> Result<StepOutcome> {
        let since = self.client(name)?.since;
        let ended = |event: &Event| match note_of(event, name)? {
            STOPPED => Some(Ok(None)),
            text => match (text.strip_prefix(DONE), text.strip_prefix(FAILED)) {
                (Some(last), _) => Some(Ok(last.parse().ok())),
                (_, Some(why)) => Some(Err(why.to_owned())),
                _ => None,
            },
        };
        let step = self.recorder.wait_for(since, EVENT_LIMIT, ended);
        let step = step.with_context(|| format!("{name}'s step has no end"))?;
        let Some(last) = step.map_err(|why| anyhow!("{name}: {why}"))? else {
            return Ok(StepOutcome::Stopped);
        };
        // Events of the resource come through another pipe, and may arrive later.
        let effect = |event: &Event| match event.kind {
            EventKind::Read { seq, .. } | EventKind::Wrote { seq, .. } => {
                (seq >= last).then_some(())
            }
            _ => None,
        };
        if last == 0 || self.recorder.wait_for(0, EVENT_LIMIT, effect).is_some() {
            Ok(StepOutcome::Done)
        } else {
            bail!("the resource did not report what {name} did")
        }
    }

    /// A client releases the lock: whether it still held it; none if there was no response.
    pub(crate) fn release(&mut self, name: &str) -> Result<Option<bool>> {
        let hold = self.client(name)?.hold;
        self.send(name, &ClientCommand::Release { hold })?;
        let since = self.client(name)?.since;
        let released = |event: &Event| match event.kind {
            EventKind::Released { hold: of, own } if of == hold => Some(own),
            _ => None,
        };
        let own = self.recorder.wait_for(since, EVENT_LIMIT, released);
        own.with_context(|| format!("{name}'s release has no end"))
    }

    /// A client ends its work: it writes and releases.
    pub(crate) fn write_and_release(&mut self, name: &str) -> Result<()> {
        self.write(name)?;
        self.release(name).map(drop)
    }

    /// A client drops an acquire that still waits.
    pub(crate) fn cancel(&mut self, name: &str) -> Result<()> {
        let hold = self.client(name)?.hold;
        self.send(name, &ClientCommand::Cancel { hold })?;
        self.outcome(name).map(drop)
    }

    /// Waits until the last acquire of a client is granted, for as long as the run's limit: whether
    /// it was. A client whose acquire failed acquires again. Records the state at the server now
    /// and then.
    pub(crate) fn wait_granted(&mut self, name: &str) -> Result<bool> {
        let end = Instant::now() + self.limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.outcome_within(name, left.min(self.lease / 4))? {
                Some(AcquireOutcome::Granted) => return Ok(true),
                _ if left.is_zero() => return Ok(false),
                Some(_) => drop(self.acquire(name, None)?),
                // A server that is down cannot be observed.
                None => drop(self.observe()),
            }
        }
    }

    /// Waits until one of these attempts is granted: its index.
    pub(crate) fn next_granted(&mut self, attempts: &[(&str, u64)]) -> Result<Option<usize>> {
        let index = |event: &Event| match event.kind {
            EventKind::Granted { hold, .. } => attempts.iter().position(|(_, of)| *of == hold),
            _ => None,
        };
        Ok(self.recorder.wait_for(0, EVENT_LIMIT, index))
    }
}

fn outcome_of(event: &Event, attempt: u64) -> Option<AcquireOutcome> {
    match event.kind {
        EventKind::Granted { hold, .. } if hold == attempt => Some(AcquireOutcome::Granted),
        EventKind::Refused { hold, .. } if hold == attempt => Some(AcquireOutcome::Refused),
        EventKind::Unanswered { hold, .. } if hold == attempt => Some(AcquireOutcome::NoResponse),
        _ => None,
    }
}
