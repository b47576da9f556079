//! An election without async.

use std::future::ready;
use std::time::Duration;

use super::{Client, Guard, wait};
use crate::backend::{Attempt, Busy};
use crate::election::Leader;
use crate::error::{ErrorKind, Result};
use crate::lease::Lease;

/// An election: one leader at a time. See [`tenure::Election`](crate::Election).
///
/// # Examples
///
/// ```
/// let locks = tenure::blocking::connect("memory:")?;
/// let election = locks.election("scheduler").note("http://10.0.0.7:80");
/// let leading = election.campaign()?;
/// assert_eq!(election.leader()?.unwrap().token(), Some(leading.token()));
/// leading.release()?; // resigns
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "an election does nothing until it is campaigned for, or observed"]
pub struct Election {
    pub(super) election: crate::Election,
    pub(super) client: Client,
}

impl Election {
    /// How long the server keeps a leader that does not renew.
    pub fn ttl(self, ttl: Duration) -> Election {
        Election { election: self.election.ttl(ttl), ..self }
    }

    /// How often leadership is renewed: every third of the ttl unless set.
    pub fn renew_every(self, interval: Duration) -> Election {
        Election { election: self.election.renew_every(interval), ..self }
    }

    /// The longest term.
    pub fn max_hold(self, limit: Duration) -> Election {
        Election { election: self.election.max_hold(limit), ..self }
    }

    /// Free text that observers see beside the leader, such as the address where it is reached.
    pub fn note(self, note: impl Into<String>) -> Election {
        Election { election: self.election.note(note), ..self }
    }

    /// Called with every response that another one leads, on the client's own thread.
    pub fn on_busy(self, f: impl Fn(&Busy) + Send + Sync + 'static) -> Election {
        Election { election: self.election.on_busy(f), ..self }
    }

    /// Becomes the leader, and waits for as long as another one leads.
    ///
    /// # Errors
    ///
    /// As for [`Election::campaign`](crate::Election::campaign).
    pub fn campaign(&self) -> Result<Guard> {
        self.check_process()?;
        wait(self.election.campaign()).map(Guard)
    }

    /// Becomes the leader, waiting at most for `timeout`.
    ///
    /// # Errors
    ///
    /// As for [`Election::campaign_within`](crate::Election::campaign_within).
    pub fn campaign_within(&self, timeout: Duration) -> Result<Attempt<Guard>> {
        self.check_process()?;
        Ok(wait(self.election.campaign_within(timeout))?.map(Guard))
    }

    /// Becomes the leader if there is none.
    ///
    /// # Errors
    ///
    /// As for [`Election::try_campaign`](crate::Election::try_campaign).
    pub fn try_campaign(&self) -> Result<Attempt<Guard>> {
        self.check_process()?;
        Ok(wait(self.election.try_campaign())?.map(Guard))
    }

    /// Leads whenever it can: the work runs on this thread, and is called again in the next term,
    /// with a higher token, if leadership was lost before it returned. No work that blocks can be
    /// stopped from outside: it [checks](Lease::check) the lease before each step, and returns when
    /// it is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// let locks = tenure::blocking::connect("memory:")?;
    /// let steps = locks.election("scheduler").lead(|term| {
    ///     let mut steps = 0;
    ///     while term.check().is_ok() && !term.is_closing() && steps < 3 {
    ///         steps += 1; // one step of the work, with term.token()
    ///     }
    ///     steps
    /// })?;
    /// assert_eq!(steps, 3);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Election::lead`](crate::Election::lead).
    pub fn lead<T>(&self, mut work: impl FnMut(&Lease) -> T) -> Result<T> {
        self.check_process()?;
        wait(self.election.lead(|term| ready(work(&term))))
    }

    /// The leader, if there is one: for operators and for finding it, not for decisions.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like.
    pub fn leader(&self) -> Result<Option<Leader>> {
        wait(self.election.leader())
    }

    /// Observes who leads, without being a candidate.
    pub fn observe(&self) -> Observer {
        Observer(self.election.observe())
    }

    fn check_process(&self) -> Result<()> {
        self.client.0.inner().executor.check()
    }
}

/// Reports who leads: at once, then after every change. The iterator blocks until there is one, and
/// ends when the client is shut down. See [`tenure::Observer`](crate::Observer::next).
///
/// # Examples
///
/// ```
/// let locks = tenure::blocking::connect("memory:")?;
/// let election = locks.election("scheduler");
/// let mut seen = election.observe();
/// assert!(seen.next().unwrap()?.is_none());
/// let leading = election.campaign()?;
/// assert_eq!(seen.next().unwrap()?.unwrap().token(), Some(leading.token()));
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "an observer does nothing until it is asked for the next leader"]
pub struct Observer(crate::Observer);

impl Iterator for Observer {
    type Item = Result<Option<Leader>>;

    fn next(&mut self) -> Option<Self::Item> {
        match wait(self.0.next()) {
            Err(error) if error.kind() == ErrorKind::Closed => None,
            seen => Some(seen),
        }
    }
}
