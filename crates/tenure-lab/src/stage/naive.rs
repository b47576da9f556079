//! How a lock by hand is used: ask until it works, believe, delete. No deadline, no doubt; or a
//! deadline on `Instant`, which does not run while the machine sleeps.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::backend::{Backend, Claim, Owner};
use tenure::{Attempt, Error, ErrorKind, Key};
use tokio::task::AbortHandle;

use super::clock::{Clock, nanos};
use crate::history::What;
use crate::schemes::Habits;

/// A program that uses a scheme.
pub(crate) struct Naive {
    backend: Arc<dyn Backend>,
    habits: Habits,
    lease: Duration,
    clock: Clock,
    owner: Owner,
    say: Rc<dyn Fn(What)>,
}

/// A lock that the program believes to hold.
pub(crate) struct Hold {
    claim: Claim,
    pub(crate) token: Option<u64>,
    pub(crate) deadline: u64,
    /// Until when it believes; none for ever.
    until: Option<Instant>,
    watchdog: RefCell<Option<AbortHandle>>,
}

impl Hold {
    /// Whether the program still believes that it holds.
    pub(crate) fn believes(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }
}

impl Naive {
    pub(crate) fn new(
        (backend, habits): (Arc<dyn Backend>, Habits),
        lease: Duration,
        clock: Clock,
        say: Rc<dyn Fn(What)>,
    ) -> Naive {
        Naive { backend, habits, lease, clock, owner: Owner::random(), say }
    }

    /// Connects, as the first command would.
    pub(crate) async fn greet(&self) -> tenure::Result<()> {
        let key = Key::new("lab-greeting")?;
        self.backend.list(tenure::backend::Scope::Key(&key)).await.map(drop)
    }

    /// Asks again and again, for as long as patience lasts.
    pub(crate) async fn take(
        &self,
        number: u64,
        key: &str,
        patience: Option<Duration>,
    ) -> tenure::Result<Hold> {
        let owner = if self.habits.one_owner { self.owner } else { Owner::random() };
        let claim = Claim::new(Key::new(key)?, owner, self.lease);
        let end = patience.map(|patience| self.clock.after(patience));
        loop {
            let (sent, until) = (self.clock.now(), Instant::now() + self.lease);
            let until = self.habits.deadline.then_some(until);
            if let Attempt::Granted(grant) = self.backend.try_acquire(&claim).await? {
                let token = self.habits.tokens.then(|| grant.token.get());
                let deadline = sent + nanos(self.lease);
                let watchdog = RefCell::new(self.watch(number, &claim));
                return Ok(Hold { claim, token, deadline, until, watchdog });
            }
            if end.is_some_and(|end| self.clock.now() >= end) {
                return Err(Error::new(ErrorKind::Busy, "somebody else has it"));
            }
            let left = end.map_or(Duration::MAX, |end| {
                Duration::from_nanos(end.saturating_sub(self.clock.now()))
            });
            let pause = self.habits.looks.unwrap_or(Duration::MAX).min(left);
            tokio::select! {
                _hint = self.backend.until_free(&claim) => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    pub(crate) async fn release(&self, hold: &Hold) -> tenure::Result<bool> {
        let answer = self.backend.release(&hold.claim).await;
        if let Some(watchdog) = hold.watchdog.take() {
            watchdog.abort();
        }
        answer
    }

    /// Renews until it is told to stop, whatever the answers are, or whether there are any.
    fn watch(&self, number: u64, claim: &Claim) -> Option<AbortHandle> {
        let (backend, claims) = (self.backend.clone(), [claim.clone()]);
        let (clock, lease, say) = (self.clock, self.lease, self.say.clone());
        let renewing = async move {
            let mut last = clock.now();
            loop {
                tokio::time::sleep(lease / 3).await;
                let sent = clock.now();
                // The next one is sent even if this one is not answered.
                let answer = tokio::time::timeout(lease / 3, backend.renew(&claims)).await;
                if matches!(answer.as_deref(), Ok([Ok(_)])) && sent >= last {
                    last = sent;
                    let deadline = Some(sent + nanos(lease));
                    say(What::Renewed { hold: number, deadline });
                }
            }
        };
        self.habits.watchdog.then(|| tokio::task::spawn_local(renewing).abort_handle())
    }
}
