//! The conductor's faults: signals, links, and what is written down about them.

use anyhow::Result;
use rustix::process::Signal;

use super::{FAULT, Stage};
use crate::history::What;
use crate::rig::Link;

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

    /// Kills a client.
    pub(crate) fn kill(&mut self, name: &str, id: &str) -> Result<()> {
        self.actor(name)?.kill()?;
        self.recorder.note(name, What::Ended { how: "killed".to_owned() });
        self.blow(id, &format!("{name} is killed"), name);
        Ok(())
    }

    /// The way of a client to the server.
    pub(crate) fn link(&mut self, name: &str) -> Result<&Link> {
        Ok(&self.actor(name)?.link)
    }
}
