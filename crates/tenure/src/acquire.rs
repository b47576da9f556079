//! Asking: from the first request to the grant, through waiting, doubt and giving up.
//!
//! The ask runs on the client's own home and owns its claim. The caller's future only awaits the
//! answer; dropping it tells the ask to finish what is on its way and to take it back.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;

use crate::backend::Grant;
use crate::claim::{Attempt, Busy, Claim};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Grip, Guard};
use crate::held::{Held, Terms};
use crate::janitor::{Janitor, Pending};
use crate::keeper::Keeper;
use crate::key::Key;
use crate::lease::Lease;
use crate::observe::{Event, shielded};
use crate::shared::{Shared, User};

/// Called with every busy answer while waiting.
pub(crate) type OnBusy = Arc<dyn Fn(&Busy) + Send + Sync>;

/// What is asked for, and how.
pub(crate) struct Ask {
    pub(crate) claim: Claim,
    /// The key as the user knows it.
    pub(crate) key: Key,
    pub(crate) renew_every: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) outage: Duration,
    pub(crate) on_busy: Option<OnBusy>,
    pub(crate) patience: Patience,
}

/// How long to wait for a busy lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    Forever,
    None,
    Within(Duration),
}

type Answer = Result<Attempt<Grip>>;

/// Asks, and makes a guard of the grant.
pub(crate) async fn acquire(user: Arc<User>, ask: Ask) -> Result<Attempt<Guard>> {
    let shared = user.shared.clone();
    if shared.is_closing() {
        return Err(closed());
    }
    let (reply, mut answer) = oneshot::channel();
    let (give_up, given_up) = oneshot::channel();
    let caller = Caller { shared: shared.clone(), key: ask.key.clone(), give_up: Some(give_up) };
    let mut asking: Pin<Box<dyn Future<Output = ()> + Send>> =
        Box::pin(Asking::new(shared.clone(), ask, reply, given_up).run());
    // Where the tasks run on the caller's runtime, an ask that needs no waiting needs no task
    // either.
    let poll = |context: &mut Context<'_>| {
        Poll::Ready(
            shared.home.is_caller() && shared.home.poll_here(&mut asking, context).is_ready(),
        )
    };
    let finished = std::future::poll_fn(poll).await;
    if !finished && !shared.home.spawn(asking) {
        return Err(closed());
    }
    let answer = (&mut answer).await;
    caller.answered();
    let grip = answer.unwrap_or_else(|_| Err(closed()))?;
    Ok(grip.map(|grip| Guard::new(Arc::new(grip), user)))
}

/// The caller's end. Dropped before the answer came, it tells the ask to give up, and `flush` to
/// wait for that.
struct Caller {
    shared: Arc<Shared>,
    key: Key,
    give_up: Option<oneshot::Sender<Pending>>,
}

impl Caller {
    fn answered(mut self) {
        self.give_up = None;
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(give_up) = self.give_up.take() {
            // If the ask has ended already, its grant is dropped with the answer's channel.
            let _ended = give_up.send(self.shared.janitor.begin(self.key.clone()));
        }
    }
}

/// An ask under way.
struct Asking {
    shared: Arc<Shared>,
    ask: Ask,
    reply: Option<oneshot::Sender<Answer>>,
    given_up: oneshot::Receiver<Pending>,
    started: Moment,
    /// When patience ends.
    until: Moment,
    /// When the last ask that was answered had been sent: a pushed grant counts from there.
    answered: Moment,
    /// Since when the server has not answered.
    silent_since: Option<Moment>,
    /// What the server said last.
    last: Last,
    pause: Duration,
}

enum Last {
    Nothing,
    Busy(Busy),
    Doubt(Error),
}

/// Why an ask has to end without a grant.
enum End {
    /// The caller dropped its future.
    GivenUp(Option<Pending>),
    /// The caller is to be told this.
    Tell(Answer),
}

/// The ask has ended and its caller was told; what it may have left at the server is pending, if it
/// may have left anything.
struct Ended(Option<Pending>);

impl Asking {
    fn new(
        shared: Arc<Shared>,
        ask: Ask,
        reply: oneshot::Sender<Answer>,
        given_up: oneshot::Receiver<Pending>,
    ) -> Asking {
        let started = shared.clock.now();
        let until = match ask.patience {
            Patience::Within(patience) => started + patience,
            Patience::Forever | Patience::None => Moment::NEVER,
        };
        Asking {
            shared,
            ask,
            reply: Some(reply),
            given_up,
            started,
            until,
            answered: started,
            silent_since: None,
            last: Last::Nothing,
            pause: FIRST_PAUSE,
        }
    }

    async fn run(mut self) {
        let key = self.ask.key.clone();
        self.shared.observers.tell(|| Event::Asked { key });
        match self.ask_until_granted().await {
            Ok(grip) => self.hand_over(grip),
            Err(ended) => self.withdraw(ended),
        }
    }

    /// Asks, waits and asks again.
    async fn ask_until_granted(&mut self) -> Result<Grip, Ended> {
        loop {
            let sent = self.shared.clock.now();
            match self.ask_once().await? {
                // The keeper may have stopped: what is granted now would not be renewed.
                Ok(Attempt::Granted(_)) if self.shared.is_closing() => {
                    return Err(self.end(End::Tell(Err(closed()))));
                }
                Ok(Attempt::Granted(grant)) => match self.grip(grant, sent) {
                    Some(grip) => return Ok(grip),
                    None => self.doubts(too_late(&self.ask.key))?,
                },
                Ok(Attempt::Busy(busy)) => self.is_busy(busy, sent)?,
                Err(error) if error.kind() == ErrorKind::Unavailable => self.doubts(error)?,
                Err(error) => return Err(self.end(End::Tell(Err(error)))),
            }
            if let Some(grip) = self.wait().await? {
                return Ok(grip);
            }
        }
    }

    /// One request and its answer. If the ask has to end meanwhile, the caller is told at once, and
    /// the request is finished before it is undone.
    async fn ask_once(&mut self) -> Result<Result<Attempt<Grant>>, Ended> {
        let shared = self.shared.clone();
        let claim = self.ask.claim.clone();
        // An ask that is not repeated need not leave time for another.
        let limit = match self.ask.patience {
            Patience::None => Shared::answer_limit(claim.ttl * 3),
            Patience::Within(_) | Patience::Forever => Shared::answer_limit(claim.ttl),
        };
        let mut request = std::pin::pin!(shared.call(limit, shared.backend.try_acquire(&claim)));
        // Patience that is shorter than the way to the server should still get an answer.
        let until = match self.last {
            Last::Nothing => self.until + FIRST_ANSWER,
            Last::Busy(_) | Last::Doubt(_) => self.until,
        };
        let end = tokio::select! {
            biased;
            answer = &mut request => return Ok(answer),
            end = self.until_end(until) => end,
        };
        let ended = self.end(end);
        self.ask.claim.doubtful |= request.await.is_err();
        Err(ended)
    }

    /// Waits for the next reason to ask: a hint, the time, or a grant that the server pushed.
    async fn wait(&mut self) -> Result<Option<Grip>, Ended> {
        let shared = self.shared.clone();
        let claim = self.ask.claim.clone();
        let (now, pause) = (shared.clock.now(), self.pause);
        let longest = match &self.last {
            Last::Busy(busy) => busy.retry_after.unwrap_or(claim.ttl).min(claim.ttl / 3),
            Last::Nothing | Last::Doubt(_) => Duration::ZERO,
        };
        let silent = self.silent_since.is_some();
        let until = self.until;
        let pushed = tokio::select! {
            biased;
            pushed = hint(&shared, &claim), if !silent => pushed,
            () = shared.clock.sleep_until(now + longest.max(pause)) => None,
            end = self.until_end(until) => return Err(self.end(end)),
        };
        if let Some(grant) = pushed {
            if shared.is_closing() {
                return Err(self.end(End::Tell(Err(closed()))));
            }
            if let Some(grip) = self.grip_pushed(grant) {
                return Ok(Some(grip));
            }
        }
        // An eager hint must not make a hot loop.
        tokio::select! {
            biased;
            end = self.until_end(until) => Err(self.end(end)),
            () = shared.clock.sleep_until(now + pause.min(claim.ttl / 3)) => Ok(None),
        }
    }

    /// Returns when the ask has to end without a grant.
    async fn until_end(&mut self, until: Moment) -> End {
        let shared = self.shared.clone();
        tokio::select! {
            biased;
            pending = &mut self.given_up => return End::GivenUp(pending.ok()),
            () = shared.closed() => return End::Tell(Err(closed())),
            () = shared.clock.sleep_until(until) => {}
        }
        End::Tell(match &self.last {
            Last::Busy(busy) => Ok(Attempt::Busy(self.waited(busy.clone()))),
            Last::Doubt(error) => Err(error.clone()),
            Last::Nothing => {
                let message = format!("no answer from {} in time", self.shared.info.name);
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        })
    }

    fn is_busy(&mut self, mut busy: Busy, sent: Moment) -> Result<(), Ended> {
        self.answered = sent;
        self.silent_since = None;
        busy.key = self.ask.key.clone();
        let busy = self.waited(busy);
        // The floor grows while hints bring nothing, and starts anew when somebody else holds.
        let token = |busy: &Busy| busy.holder.as_ref().and_then(|holder| holder.token);
        self.pause = match &self.last {
            Last::Busy(last) if token(last) == token(&busy) => (self.pause * 2).min(MOST_PAUSE),
            _ => FIRST_PAUSE,
        };
        if let Some(on_busy) = &self.ask.on_busy {
            shielded(|| on_busy(&busy));
        }
        if let Patience::None = self.ask.patience {
            return Err(self.refused(busy));
        }
        self.shared.tell_if_polled();
        self.last = Last::Busy(busy);
        Ok(())
    }

    /// The server did not answer. That is not a no: ask again with the same owner, for a while.
    fn doubts(&mut self, error: Error) -> Result<(), Ended> {
        let now = self.shared.clock.now();
        self.ask.claim.doubtful = true;
        let silent = now.since(*self.silent_since.get_or_insert(now));
        let give_up = match self.ask.patience {
            Patience::None => true,
            Patience::Within(_) => false,
            Patience::Forever => silent >= self.ask.outage,
        };
        if give_up {
            return Err(self.end(End::Tell(Err(error))));
        }
        let (key, cause) = (self.ask.key.clone(), error.clone());
        self.shared.observers.tell(|| Event::Unavailable { key: Some(key), cause });
        self.pause = (self.pause * 2).clamp(FIRST_SILENT_PAUSE, MOST_SILENT_PAUSE);
        self.last = Last::Doubt(error);
        Ok(())
    }

    /// Makes the grant ours, without an await in between. `None` if its lease is nearly over.
    fn grip(&self, grant: Grant, sent: Moment) -> Option<Grip> {
        let shared = &self.shared;
        let now = shared.clock.now();
        let deadline = sent + grant.ttl;
        if deadline.since(now) <= grant.ttl / 3 {
            return None;
        }
        let terms = Terms {
            claim: self.ask.claim.clone(),
            key: self.ask.key.clone(),
            token: grant.token,
            renew_every: self.ask.renew_every,
            max_hold: self.ask.max_hold,
        };
        let held = Arc::new(Held::new(terms, shared.clock, deadline));
        Keeper::adopt(shared, held.clone(), sent, grant.ttl);
        let (key, token) = (held.key.clone(), held.token);
        let waited = now.since(self.started);
        shared.observers.tell(|| Event::Granted { key, token, waited });
        Some(Grip::new(Lease::new(held), shared.clone()))
    }

    /// Makes a pushed grant ours. It counts from the last request that was answered, so that it is
    /// shorter than what was asked for: a renewal makes up for that. Nobody renews a fixed lease,
    /// which therefore asks once more: the same owner's request sets the whole ttl.
    fn grip_pushed(&self, grant: Grant) -> Option<Grip> {
        if self.ask.claim.fixed {
            return None;
        }
        self.grip(grant, self.answered)
    }

    /// Ends the ask: counts it as pending first, so that a `flush` after the answer waits for it.
    fn end(&mut self, end: End) -> Ended {
        match end {
            End::GivenUp(pending) => Ended(Some(pending.unwrap_or_else(|| self.begin()))),
            End::Tell(answer) => {
                let pending = self.begin();
                self.tell(answer);
                Ended(Some(pending))
            }
        }
    }

    /// Ends an ask that does not wait and was answered busy. Where such an answer leaves nothing
    /// behind, there is nothing to take back, and the server is spared a second request.
    fn refused(&mut self, busy: Busy) -> Ended {
        let answer = Ok(Attempt::Busy(busy));
        if !self.shared.info.busy_leaves_nothing || self.ask.claim.doubtful {
            return self.end(End::Tell(answer));
        }
        self.tell(answer);
        Ended(None)
    }

    /// Takes back what the ask may have left at the server.
    fn withdraw(self, Ended(pending): Ended) {
        let (key, waited) = (self.ask.key.clone(), self.shared.clock.now().since(self.started));
        self.shared.observers.tell(|| Event::Withdrawn { key, waited });
        if let Some(pending) = pending {
            Janitor::withdraw(&self.shared, self.ask.claim, pending);
        }
    }

    fn tell(&mut self, answer: Answer) {
        if let Some(reply) = self.reply.take() {
            // Nobody may be there to hear it; nothing is held in that case.
            drop(reply.send(answer));
        }
    }

    /// Gives the grant to the caller. If it is gone, the grant is given back, and a `flush` that
    /// waits for the caller's pending waits for that.
    fn hand_over(mut self, grip: Grip) {
        let Some(reply) = self.reply.take() else { return };
        if let Err(Ok(Attempt::Granted(grip))) = reply.send(Ok(Attempt::Granted(grip))) {
            let pending = self.given_up.try_recv();
            grip.give_back(pending.unwrap_or_else(|_| self.begin()));
        }
    }

    fn begin(&self) -> Pending {
        self.shared.janitor.begin(self.ask.key.clone())
    }

    fn waited(&self, busy: Busy) -> Busy {
        Busy { waited: self.shared.clock.now().since(self.started), ..busy }
    }
}

/// The backend's hint. A backend that panics gives none.
async fn hint(shared: &Shared, claim: &Claim) -> Option<Grant> {
    match AssertUnwindSafe(shared.backend.until_free(claim)).catch_unwind().await {
        Ok(pushed) => pushed,
        Err(_panic) => std::future::pending().await,
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client is shut down; connect anew")
}

fn too_late(key: &Key) -> Error {
    let message =
        format!("`{key}` was granted, but the answer came when its lease was nearly over");
    Error::new(ErrorKind::Unavailable, message)
}

/// The shortest time between two asks that hints bring about, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const MOST_PAUSE: Duration = Duration::from_millis(50);
/// How long the first answer may take beyond the caller's patience.
const FIRST_ANSWER: Duration = Duration::from_millis(250);
/// The pauses between asks while the server does not answer.
const FIRST_SILENT_PAUSE: Duration = Duration::from_millis(20);
const MOST_SILENT_PAUSE: Duration = Duration::from_secs(1);
