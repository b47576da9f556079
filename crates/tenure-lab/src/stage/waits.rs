//! What the conductor waits for around the end of a lease.

use std::time::Duration;

use anyhow::{Context, Result};

use super::clock::nanos;
use super::{Stage, Step};
use crate::history::{Event, What};

impl Stage<'_> {
    /// Waits until a client is told that its lock was renewed a whole lease after that moment:
    /// whether it was. No, if it is told that its lock is lost.
    pub(crate) fn renewed_past(&mut self, name: &str, moment: u64) -> Result<bool> {
        let hold = self.actor(name)?.hold;
        let past = moment.saturating_add(nanos(self.lease));
        let told = |event: &Event| match event.what {
            What::Renewed { hold: of, .. } if of == hold && event.at > past => Some(true),
            What::Lost { hold: of, .. } if of == hold => Some(false),
            _ => None,
        };
        let told = self.recorder.wait(0, self.lease * 4, told);
        told.with_context(|| format!("{name}'s lock is neither renewed nor lost"))
    }

    /// When the last grant of a client was told, and until when the client may believe in it.
    pub(crate) fn granted(&self, name: &str) -> Option<(u64, u64)> {
        let hold = self.actors.get(name)?.hold;
        self.recorder.last(|event| match event.what {
            What::Granted { hold: of, deadline, .. } if of == hold => Some((event.at, deadline?)),
            _ => None,
        })
    }

    /// Lets time pass until so much is left of a client's lease, by its own clock.
    pub(crate) fn until_left(&self, name: &str, left: Duration) -> Result<()> {
        let (_, deadline) = self.granted(name).context("nothing was granted")?;
        let rest = deadline.saturating_sub(nanos(left)).saturating_sub(self.now());
        std::thread::sleep(Duration::from_nanos(rest));
        Ok(())
    }

    /// When the server will give the lock up by itself, as it says now.
    pub(crate) fn server_until(&mut self) -> Result<Option<u64>> {
        self.look()?;
        let seen = |event: &Event| match event.what {
            What::Seen { until, .. } => Some(until),
            _ => None,
        };
        Ok(self.recorder.last(seen).flatten())
    }

    /// Looks at its lock and reads, as the last thing before a fault: whether it still holds.
    pub(crate) fn looks_again(&mut self, name: &str) -> Result<bool> {
        Ok(self.read(name)? == Step::Done)
    }
}
