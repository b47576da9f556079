//! Election: one leader at a time, and observers that learn who it is.
//!
//! **State at the server.** Nothing of its own: leadership is an exclusive lock, candidates are its
//! waiters, and the leader's note is what observers see. A term is one grant: its token is higher
//! than that of every term before it.

mod observer;

use std::time::Duration;

pub use self::observer::Observer;
use self::observer::{Term, sleep};
use crate::backend::{Attempt, Busy, Holder, Holding, Mode, Waiter};
use crate::error::{ErrorKind, Result};
use crate::guard::Guard;
use crate::lease::Lease;
use crate::lock::Lock;
use crate::support::backoff::Backoff;
use crate::token::FencingToken;

/// The pauses while the server does not respond, of leaders and observers.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// An election: handle and builder in one, as [`Lock`] is. Candidates [`campaign`](Self::campaign),
/// or [`lead`](Self::lead) whenever they can; observers see who leads.
///
/// Leadership ends like a lock: by itself, if the leader is paused or cut off. Its
/// [token](Lease::token) is higher than that of every leader before, so that a resource with a
/// [`fence`](crate::fence) refuses what a deposed leader still sends. `docs/election.md` of the
/// repository says what that one may still do.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("memory:").await?;
/// let election = locks.election("scheduler").note("http://10.0.0.7:80");
/// let leading = election.campaign().await?;
/// let leader = election.leader().await?.expect("there is one");
/// assert_eq!(leader.holder.note, "http://10.0.0.7:80");
/// assert_eq!(leader.token(), Some(leading.token()));
/// leading.release().await?; // resigns
/// assert!(election.leader().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "an election does nothing until it is campaigned for, or observed"]
pub struct Election {
    lock: Lock,
}

impl Election {
    pub(crate) fn new(lock: Lock) -> Election {
        Election { lock }
    }

    /// How long the server keeps a leader that does not renew: 30 s unless set. The next one leads
    /// at most this much later. See [`Lock::ttl`].
    pub fn ttl(self, ttl: Duration) -> Election {
        Election { lock: self.lock.ttl(ttl) }
    }

    /// How often leadership is renewed: every third of the ttl unless set.
    pub fn renew_every(self, interval: Duration) -> Election {
        Election { lock: self.lock.renew_every(interval) }
    }

    /// The longest term. Then leadership is lost with reason `MaxHold`.
    pub fn max_hold(self, limit: Duration) -> Election {
        Election { lock: self.lock.max_hold(limit) }
    }

    /// Free text that observers see beside the leader, such as the address where it is reached. It
    /// stays as it is for the whole term.
    pub fn note(self, note: impl Into<String>) -> Election {
        Election { lock: self.lock.note(note) }
    }

    /// Called with every response that another one leads. It must not block.
    pub fn on_busy(self, f: impl Fn(&Busy) + Send + Sync + 'static) -> Election {
        Election { lock: self.lock.on_busy(f) }
    }

    /// Becomes the leader, and waits for as long as another one leads. The guard is the leadership:
    /// its release is the resignation.
    ///
    /// # Errors
    ///
    /// As for [`Lock::acquire`].
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost**, as for [`Lock::acquire`].
    pub fn campaign(&self) -> impl Future<Output = Result<Guard>> + Send + use<> {
        self.lock.acquire()
    }

    /// Becomes the leader, waiting at most for `timeout`.
    ///
    /// # Errors
    ///
    /// As for [`Lock::acquire_within`].
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost**, as for [`Lock::acquire`].
    pub fn campaign_within(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Attempt<Guard>>> + Send + use<> {
        self.lock.acquire_within(timeout)
    }

    /// Becomes the leader if there is none.
    ///
    /// # Errors
    ///
    /// As for [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost**, as for [`Lock::acquire`].
    pub fn try_campaign(&self) -> impl Future<Output = Result<Attempt<Guard>>> + Send + use<> {
        self.lock.try_acquire()
    }

    /// Leads whenever it can: campaigns, runs the work [`while_held`](Lease::while_held), and
    /// resigns when the work has ended. If leadership is lost, the work is dropped at its next
    /// await, and the closure is called again in the next term, with a higher token. While the
    /// server does not respond, it goes on campaigning, with pauses.
    ///
    /// Work without an end of its own ends at [`Lease::closing`], when the client is shut down.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
    /// let locks = tenure::connect("memory:").await?;
    /// let mut terms = 0;
    /// let work = |term: tenure::Lease| {
    ///     terms += 1;
    ///     let (locks, first) = (locks.clone(), terms == 1);
    ///     async move {
    ///         if first {
    ///             locks.lock("scheduler").evict(term.token()).await?; // deposed
    ///             term.lost().await;
    ///         }
    ///         Ok::<_, tenure::Error>(term.token())
    ///     }
    /// };
    /// let token = locks.election("scheduler").lead(work).await??;
    /// assert!(token.get() > 1 && terms == 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// What another campaign cannot change: `Closed` (the client is shut down), `Denied`,
    /// `Invalid`, `Internal`. Never `Lost` and never `Unavailable`.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost.** Dropping the future drops the work, and resigns in the
    /// background.
    #[doc(alias("run", "run_leader", "leader_loop"))]
    pub fn lead<F, W>(&self, mut work: F) -> impl Future<Output = Result<W::Output>> + use<F, W>
    where
        F: FnMut(Lease) -> W,
        W: Future,
    {
        let lock = self.lock.clone();
        async move {
            let mut pauses = Backoff::new(FIRST_RETRY_PAUSE, LONGEST_RETRY_PAUSE);
            loop {
                match lock.run(&mut work).await {
                    Err(error) if error.kind() == ErrorKind::Lost => pauses.reset(),
                    Err(error) if error.kind() == ErrorKind::Unavailable => {
                        let inner = lock.client().inner().clone();
                        let pause = pauses.next();
                        let waiting = async move { sleep(&inner, pause).await };
                        // A client that was shut down meanwhile is found by the next campaign.
                        let _closed =
                            lock.client().inner().executor.run_while_wanted(waiting).await?;
                    }
                    ended => return ended,
                }
            }
        }
    }

    /// The leader, if there is one: for operators and for finding it, not for decisions. It may be
    /// deposed by the time that the response arrives; only its token proves anything, to a
    /// [`fence`](crate::fence).
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    #[doc(alias("who", "status"))]
    pub fn leader(&self) -> impl Future<Output = Result<Option<Leader>>> + Send + use<> {
        let status = self.lock.status();
        async move { Ok(Leader::of(status.await?)) }
    }

    /// Observes who leads, without being a candidate. See [`Observer::next`].
    #[doc(alias("watch", "subscribe"))]
    pub fn observe(&self) -> Observer {
        Observer::new(&self.lock)
    }
}

/// Who leads, as an observer sees it.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("memory:?owner=web-3").await?;
/// let election = locks.election("scheduler");
/// let _leading = election.campaign().await?;
/// assert_eq!(election.leader().await?.unwrap().holder.owner, "web-3");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// The leader.
    pub holder: Holder,
    /// Who would lead next, in the order in which they came.
    pub candidates: Vec<Waiter>,
}

impl Leader {
    /// The token of its term, if the server keeps it readable.
    pub fn token(&self) -> Option<FencingToken> {
        self.holder.token
    }

    /// The leader of a held key. Shared holders are none.
    fn of(holding: Option<Holding>) -> Option<Leader> {
        let Holding { holders, waiters, .. } = holding?;
        let holder = holders.into_iter().find(|holder| holder.mode == Mode::Exclusive)?;
        Some(Leader { holder, candidates: waiters })
    }

    /// What tells two terms apart: the token, and where the server does not show it, the leader.
    fn term(&self) -> Term {
        let Holder { owner, host, pid, supervisor, note, token, .. } = &self.holder;
        match token {
            Some(token) => Term::Token(*token),
            None => Term::Of(format!("{owner}\n{host}\n{pid}\n{supervisor:?}\n{note}")),
        }
    }
}
