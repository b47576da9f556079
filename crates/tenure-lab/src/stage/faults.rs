//! The conductor's faults: signals, links, and what is written down about them.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;
use tenure_servers::wait_until;

use super::client::CLOCKS;
use super::part::Order;
use super::{FAULT, PATIENCE, Stage, note_of};
use crate::history::{Event, What};
use crate::rig::Link;

/// A fault that cannot be made here.
#[derive(Debug)]
pub(crate) struct Unplayable(pub(crate) &'static str);

impl fmt::Display for Unplayable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

impl std::error::Error for Unplayable {}

impl Stage<'_> {
    /// A fault begins that lasts until it is healed.
    pub(crate) fn fault(&self, id: &str, text: &str, target: &str) {
        self.wound(id, text, target, true);
    }

    /// A fault happens.
    pub(crate) fn blow(&self, id: &str, text: &str, target: &str) {
        self.wound(id, text, target, false);
    }

    fn wound(&self, id: &str, text: &str, target: &str, lasts: bool) {
        let (id, text, target) = (id.to_owned(), text.to_owned(), target.to_owned());
        self.recorder.note(FAULT, What::Fault { id, text, target, lasts });
    }

    pub(crate) fn healed(&self, text: &str, target: &str) {
        let (text, target) = (text.to_owned(), target.to_owned());
        self.recorder.note(FAULT, What::Healed { text, target });
    }

    /// Stops a client where it is.
    pub(crate) fn stop(&mut self, name: &str, id: &str) -> Result<()> {
        self.fault(id, &format!("{name} is stopped"), name);
        self.actor(name)?.signal(Signal::STOP)
    }

    /// Lets a stopped client go on.
    pub(crate) fn go_on(&mut self, name: &str) -> Result<()> {
        self.healed(&format!("{name} goes on"), name);
        self.actor(name)?.signal(Signal::CONT)
    }

    /// Puts a client's machine to sleep: the process stops, and so does its monotonic clock.
    pub(crate) fn suspend(&mut self, name: &str, id: &str) -> Result<()> {
        self.fault(id, &format!("{name}'s machine sleeps"), name);
        let actor = self.actor(name)?;
        actor.signal(Signal::STOP)?;
        // The signal works a moment later, and until then the clock runs.
        wait_until(STOPS_WITHIN, || match actor.is_stopped() {
            true => Ok(()),
            false => Err(anyhow::anyhow!("{name} does not stop")),
        })?;
        actor.slept = Some(Instant::now());
        Ok(())
    }

    /// Wakes a client's machine: of the time that it slept, its boot clock knows and its monotonic
    /// clock does not.
    pub(crate) fn wake(&mut self, name: &str) -> Result<()> {
        let file = self.clock_file(name);
        let since = self.actor(name)?.slept.take().context("it does not sleep")?;
        tenure_servers::sleeping_clock(&file, since.elapsed())?;
        self.healed(&format!("{name}'s machine wakes up"), name);
        self.actor(name)?.signal(Signal::CONT)?;
        self.compare_clocks(name)
    }

    /// Writes down how long ago a client asked for its lock, by its two clocks.
    fn compare_clocks(&mut self, name: &str) -> Result<()> {
        let hold = self.actor(name)?.hold;
        self.order(name, &Order::Clocks { hold })?;
        let since = self.actor(name)?.since;
        let figures = |event: &Event| {
            let (instant, boot) = note_of(event, name)?.strip_prefix(CLOCKS)?.split_once(' ')?;
            Some((instant.parse::<u64>().ok()?, boot.parse::<u64>().ok()?))
        };
        let told = self.recorder.wait(since, PATIENCE, figures);
        let (instant, boot) = told.with_context(|| format!("{name} does not tell its time"))?;
        self.measure("since its ask, by Instant", instant as f64 / 1e6, "ms");
        self.measure("since its ask, by the boot clock", boot as f64 / 1e6, "ms");
        if instant > boot / 2 {
            return Err(Unplayable("this program does not ask libc for the time").into());
        }
        Ok(())
    }

    /// Kills a client.
    pub(crate) fn kill(&mut self, name: &str, id: &str) -> Result<()> {
        let sent = self.recorder.now();
        self.actor(name)?.kill()?;
        // The kernel gives away what it held before we hear that it is dead.
        let said = self.recorder.last(|event| (event.lane == name).then_some(event.at));
        let (lane, what) = (name.to_owned(), What::Ended { how: "killed".to_owned() });
        self.recorder.add(Event { at: sent.max(said.unwrap_or(0)), lane, what });
        self.blow(id, &format!("{name} is killed"), name);
        Ok(())
    }

    /// The way of a client to the server.
    pub(crate) fn link(&mut self, name: &str) -> Result<&Link> {
        Ok(&self.actor(name)?.link)
    }
}

/// A signal takes milliseconds, unless the machine has worse to do.
const STOPS_WITHIN: Duration = Duration::from_secs(10);
