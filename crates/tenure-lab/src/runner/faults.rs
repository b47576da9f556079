//! The faults that hit a client process, and what the history says about faults.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tenure_servers::wait_until;

use super::{EVENT_LIMIT, LAB, Runner, note_of};
use crate::history::{Event, EventKind};
use crate::roles::protocol::{CLOCKS, ClientCommand};

/// A signal takes effect within milliseconds, unless the machine is overloaded.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A fault that cannot be injected on this machine.
#[derive(Debug)]
pub(crate) struct Unsupported(&'static str);

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

impl std::error::Error for Unsupported {}

impl Runner<'_> {
    /// Records that a fault begins, which lasts until [`end_fault`](Runner::end_fault).
    pub(crate) fn begin_fault(&self, id: &str, text: &str, target: &str) {
        self.record_fault(id, text, target, true);
    }

    /// Records a fault that does not last.
    pub(crate) fn fault_once(&self, id: &str, text: &str, target: &str) {
        self.record_fault(id, text, target, false);
    }

    fn record_fault(&self, id: &str, text: &str, target: &str, lasts: bool) {
        let (id, text, target) = (id.to_owned(), text.to_owned(), target.to_owned());
        self.recorder.record(LAB, EventKind::Fault { id, text, target, lasts });
    }

    /// Records that a fault has ended.
    pub(crate) fn end_fault(&self, text: &str, target: &str) {
        let (text, target) = (text.to_owned(), target.to_owned());
        self.recorder.record(LAB, EventKind::Healed { text, target });
    }

    /// Stops a client's process with SIGSTOP.
    pub(crate) fn pause(&mut self, name: &str, id: &str) -> Result<()> {
        self.begin_fault(id, &format!("{name} is stopped"), name);
        self.client(name)?.signal(Signal::STOP)
    }

    /// Continues a client's process with SIGCONT.
    pub(crate) fn resume(&mut self, name: &str) -> Result<()> {
        self.end_fault(&format!("{name} goes on"), name);
        self.client(name)?.signal(Signal::CONT)
    }

    /// Suspends a client's machine: the process stops, and so does its monotonic clock.
    pub(crate) fn suspend(&mut self, name: &str, id: &str) -> Result<()> {
        self.begin_fault(id, &format!("{name}'s machine sleeps"), name);
        let client = self.client(name)?;
        client.signal(Signal::STOP)?;
        // The signal takes effect a moment later, and until then the clock runs.
        wait_until(STOP_LIMIT, || -> Result<()> {
            if client.is_stopped() { Ok(()) } else { bail!("{name} does not stop") }
        })?;
        client.suspended_at = Some(Instant::now());
        Ok(())
    }

    /// Wakes a client's machine up. The client's boot clock has counted the time in between, its
    /// monotonic clock has not.
    pub(crate) fn wake(&mut self, name: &str) -> Result<()> {
        let file = self.clock_file(name);
        let since = self.client(name)?.suspended_at.take();
        let since = since.with_context(|| format!("{name}'s machine is not suspended"))?;
        tenure_servers::sleeping_clock(&file, since.elapsed())?;
        self.end_fault(&format!("{name}'s machine wakes up"), name);
        self.client(name)?.signal(Signal::CONT)?;
        self.compare_clocks(name)
    }

    /// Records how long ago a client requested its lock, by its two clocks.
    fn compare_clocks(&mut self, name: &str) -> Result<()> {
        let hold = self.client(name)?.hold;
        self.send(name, &ClientCommand::CompareClocks { hold })?;
        let since = self.client(name)?.since;
        let figures = |event: &Event| {
            let (instant, boot) = note_of(event, name)?.strip_prefix(CLOCKS)?.split_once(' ')?;
            Some((instant.parse::<u64>().ok()?, boot.parse::<u64>().ok()?))
        };
        let reported = self.recorder.wait_for(since, EVENT_LIMIT, figures);
        let (instant, boot) =
            reported.with_context(|| format!("{name} did not report its clocks"))?;
        self.measure("since its ask, by Instant", instant as f64 / 1e6, "ms");
        self.measure("since its ask, by the boot clock", boot as f64 / 1e6, "ms");
        if instant > boot / 2 {
            let why = "the client's clock cannot be shifted: it does not read the time from libc";
            return Err(Unsupported(why).into());
        }
        Ok(())
    }

    /// Kills a client.
    pub(crate) fn kill(&mut self, name: &str, id: &str) -> Result<()> {
        let sent = self.recorder.now();
        self.client(name)?.kill()?;
        // The kernel frees what the process held before the lab sees its end, so that the time of
        // the signal counts; but no event of the client comes after its end.
        let last = self.recorder.find_last(|event| (event.lane == name).then_some(event.at));
        let kind = EventKind::Ended { how: "killed".to_owned() };
        let at = sent.max(last.unwrap_or(0));
        self.recorder.add(Event { at, lane: name.to_owned(), kind });
        self.fault_once(id, &format!("{name} is killed"), name);
        Ok(())
    }
}
