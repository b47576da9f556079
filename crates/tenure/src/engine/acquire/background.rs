//! An acquire that waits: a task of the client's executor.
//!
//! The task waits for a hint of the backend or for the time, sends the next request, and repeats. A
//! queue entry expires like a lock, so that a waiting claim repeats its request at least every
//! third of its ttl, also when the server pushes.
//!
//! **The race that it prevents.** A caller that drops its future while a request is under way does
//! not abandon the request: the task tells the caller first (or knows that it is gone), then awaits
//! the response, then cancels the claim. A release that overtook the request would find nothing,
//! and the late request would hold the lock for a whole lease.

use tokio::sync::oneshot;

use crate::backend::{Attempt, Grant};
use crate::engine::acquire::request::{Acquiring, Verdict};
use crate::engine::acquire::{Outcome, closed};
use crate::engine::guard_inner::GuardInner;
use crate::engine::releaser::Pending;
use crate::error::Result;
use crate::event::Event;

/// A waiting claim and its caller.
pub(super) struct Background {
    acquiring: Box<Acquiring>,
    outcome: Option<oneshot::Sender<Outcome>>,
    cancelled: oneshot::Receiver<Pending>,
}

/// Why the task has to end without a grant.
enum StopReason {
    /// The caller dropped its future.
    Cancelled(Option<Pending>),
    /// The caller gets this outcome.
    Tell(Outcome),
}

/// The acquire has ended and its caller was told. What the claim may have left at the server is
/// pending; `None` if it has left nothing.
struct Ended(Option<Pending>);

impl Background {
    pub(super) fn new(
        acquiring: Box<Acquiring>,
        outcome: oneshot::Sender<Outcome>,
        cancelled: oneshot::Receiver<Pending>,
    ) -> Background {
        Background { acquiring, outcome: Some(outcome), cancelled }
    }

    pub(super) async fn run(mut self) {
        match self.request_until_granted().await {
            Ok(hold) => self.deliver(hold),
            Err(Ended(pending)) => self.acquiring.cancel(pending),
        }
    }

    /// Waits, sends a request, and repeats.
    async fn request_until_granted(&mut self) -> Result<GuardInner, Ended> {
        loop {
            if let Some(hold) = self.wait().await? {
                return Ok(hold);
            }
            let sent = self.acquiring.inner.clock.now();
            let response = self.request().await?;
            match self.acquiring.on_response(response, sent) {
                Verdict::Held(hold) => return Ok(hold),
                Verdict::Wait => {}
                Verdict::End { outcome, leaves: true } => {
                    return Err(self.end(StopReason::Tell(outcome)));
                }
                Verdict::End { outcome, leaves: false } => {
                    self.tell(outcome);
                    return Err(Ended(None));
                }
            }
        }
    }

    /// Sends one request and awaits its response. If the task has to stop meanwhile, the caller is
    /// told at once; the response is still awaited, so that the release comes after it.
    async fn request(&mut self) -> Result<Result<Attempt<Grant>>, Ended> {
        let Background { acquiring, outcome, cancelled } = self;
        let (stop, request) = {
            let mut request = Box::pin(acquiring.request());
            let stopped = until_stopped(acquiring, cancelled);
            tokio::select! {
                biased;
                response = &mut request => return Ok(response),
                stop = stopped => (stop, request),
            }
        };
        let ended = end(acquiring, outcome, stop);
        let failed = request.await.is_err();
        self.acquiring.params.claim.unconfirmed |= failed;
        Err(ended)
    }

    /// Waits for the next reason to send a request: a hint of the backend, or the time. Returns a
    /// hold if the server pushed the grant.
    async fn wait(&mut self) -> Result<Option<GuardInner>, Ended> {
        let acquiring = &*self.acquiring;
        let inner = acquiring.inner.clone();
        let claim = &acquiring.params.claim;
        let now = inner.clock.now();
        let pause = acquiring.pause;
        let longest = acquiring.longest_pause().max(pause);
        let waited = tokio::select! {
            biased;
            pushed = inner.hint(claim), if !acquiring.is_silent() => Ok(pushed),
            () = inner.clock.sleep_until(now + longest) => Ok(None),
            stop = until_stopped(acquiring, &mut self.cancelled) => Err(stop),
        };
        match waited {
            Err(stop) => return Err(self.end(stop)),
            Ok(Some(_)) if inner.is_closing() => {
                return Err(self.end(StopReason::Tell(Err(closed()))));
            }
            Ok(Some(grant)) => {
                if let Some(hold) = self.acquiring.hold_pushed(grant) {
                    return Ok(Some(hold));
                }
            }
            Ok(None) => {}
        }
        // A hint that fires too often must not make a hot loop.
        let floor = pause.min(self.acquiring.params.claim.ttl / 3);
        let stopped = tokio::select! {
            biased;
            stop = until_stopped(&self.acquiring, &mut self.cancelled) => stop,
            () = inner.clock.sleep_until(now + floor) => return Ok(None),
        };
        Err(self.end(stopped))
    }

    /// Ends the acquire. The release is counted as pending before the caller is told, so that a
    /// `flush` after it waits for the release.
    fn end(&mut self, stop: StopReason) -> Ended {
        end(&self.acquiring, &mut self.outcome, stop)
    }

    fn tell(&mut self, outcome: Outcome) {
        tell(&mut self.outcome, outcome);
    }

    /// Gives the hold to the caller. If the caller is gone, the lock is released, and a `flush`
    /// that waits for the caller's pending release waits for this one.
    fn deliver(mut self, hold: GuardInner) {
        let Some(sender) = self.outcome.take() else { return };
        if let Err(Ok(Attempt::Granted(hold))) = sender.send(Ok(Attempt::Granted(hold))) {
            let pending = self.cancelled.try_recv();
            hold.release_in_background(pending.unwrap_or_else(|_| self.acquiring.pending()));
        }
    }
}

/// Returns when the task has to end without a grant.
async fn until_stopped(
    acquiring: &Acquiring,
    cancelled: &mut oneshot::Receiver<Pending>,
) -> StopReason {
    let inner = &acquiring.inner;
    tokio::select! {
        biased;
        pending = cancelled => return StopReason::Cancelled(pending.ok()),
        () = inner.closed() => return StopReason::Tell(Err(closed())),
        () = inner.clock.sleep_until(acquiring.until) => {}
    }
    StopReason::Tell(acquiring.on_time_over())
}

fn end(
    acquiring: &Acquiring,
    sender: &mut Option<oneshot::Sender<Outcome>>,
    stop: StopReason,
) -> Ended {
    match stop {
        StopReason::Cancelled(pending) => {
            Ended(Some(pending.unwrap_or_else(|| acquiring.pending())))
        }
        StopReason::Tell(outcome) => {
            let pending = acquiring.pending();
            if let Ok(Attempt::Busy(busy)) = &outcome {
                acquiring.inner.observers.tell(|| Event::Busy(busy.clone()));
            }
            tell(sender, outcome);
            Ended(Some(pending))
        }
    }
}

fn tell(sender: &mut Option<oneshot::Sender<Outcome>>, outcome: Outcome) {
    if let Some(sender) = sender.take() {
        // Fails if the caller is gone; this outcome holds nothing then.
        drop(sender.send(outcome));
    }
}
