//! Acquire, seen from the caller: sends the first request on the caller's own thread, and leaves
//! everything after that to the background.
//!
//! Most locks are free. Then one request is all there is, and its caller polls it itself (see
//! `in_place`). Only a claim that has to wait, or whose request got no response, becomes a task of
//! the client's executor ([`Background`]): it refreshes its queue entry and repeats its request
//! however rarely the caller's own task is polled.
//!
//! A caller that drops its future cancels the claim, wherever that is. The first request is handed
//! to the background, which awaits its response and releases whatever it brought. The task of a
//! waiting claim is told by a channel. Either way a [`Pending`] is begun in the moment of the drop,
//! so that `Client::flush` waits for the release from then on, and not only from the moment in
//! which the background noticed it.
//!
//! - `request`: one acquire, and what the response to a request means for it
//! - `background`: an acquire that waits, as a task

mod background;
mod request;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use self::background::Background;
use self::request::{Acquiring, FIRST_RESPONSE, Step};
use crate::backend::{Attempt, Busy, Claim};
use crate::engine::guard_inner::GuardInner;
use crate::engine::in_place::InPlace;
use crate::engine::releaser::Pending;
use crate::engine::{ClientInner, ClientRef, UnderWay};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::key::Key;

/// Called with every busy response while waiting.
pub(crate) type OnBusy = Arc<dyn Fn(&Busy) + Send + Sync>;

/// What an acquire comes to.
pub(crate) type Outcome = Result<Attempt<GuardInner>>;

/// The claim of one acquire, and how to go about it.
pub(crate) struct AcquireParams {
    pub(crate) claim: Claim,
    /// The key as the caller knows it, without the client's prefix.
    pub(crate) key: Key,
    /// `None` for a fixed lease.
    pub(crate) renew_every: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    /// For how long an acquire without a wait limit retries a server that does not respond.
    pub(crate) outage: Duration,
    pub(crate) on_busy: Option<OnBusy>,
    pub(crate) wait_limit: WaitLimit,
}

/// How long to wait for a busy lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitLimit {
    /// `acquire`: until it is granted.
    Forever,
    /// `try_acquire`: one request, no waiting.
    None,
    /// `acquire_within`: at most this long.
    Within(Duration),
}

/// Acquires a lock and makes a guard of its grant.
pub(crate) async fn acquire(
    client_ref: Arc<ClientRef>,
    params: AcquireParams,
) -> Result<Attempt<Guard>> {
    let inner = client_ref.inner.clone();
    let under_way = inner.begin_acquire()?;
    let key = params.key.clone();
    let attempt = match first_request(&inner, under_way, params).await? {
        Step::Held(hold) => Attempt::Granted(hold),
        Step::Ended(outcome) => outcome?,
        Step::Waits(acquiring) => wait(&inner, acquiring, key).await?,
    };
    Ok(attempt.map(|hold| Guard::new(Arc::new(hold), client_ref)))
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client is shut down; create a new one")
}

/// Sends the first request and awaits its response, on the caller's thread. If the caller has to
/// be told something else first, or is gone, the background awaits the response.
async fn first_request(
    inner: &Arc<ClientInner>,
    under_way: UnderWay,
    params: AcquireParams,
) -> Result<Step> {
    let key = params.key.clone();
    let limit = match params.wait_limit {
        WaitLimit::Within(limit) => Some(limit + FIRST_RESPONSE),
        WaitLimit::Forever | WaitLimit::None => None,
    };
    let acquiring = Acquiring::new(inner.clone(), under_way, params);
    let mut first = InPlace::new(inner.clone(), acquiring.first_request(), move |inner, first| {
        cancel_when_done(inner, first, inner.releaser.begin(key));
    });
    let mut stopped = pin!(until_stopped(inner, limit));
    poll_fn(|context| match first.poll(context) {
        Poll::Ready(step) => Poll::Ready(Ok(step)),
        Poll::Pending => {
            let stopped = inner.executor.in_context(|| stopped.as_mut().poll(context));
            stopped.map(Err)
        }
    })
    .await
}

/// Completes a first request in the background, and releases whatever it brings.
fn cancel_when_done(inner: &Arc<ClientInner>, first: BoxFuture<'static, Step>, pending: Pending) {
    inner.executor.spawn(async move {
        match first.await {
            Step::Held(hold) => hold.release_in_background(pending),
            Step::Waits(acquiring) => acquiring.cancel(Some(pending)),
            Step::Ended(_told) => {}
        }
    });
}

/// Returns when the caller has to be told that there is no response: why.
async fn until_stopped(inner: &ClientInner, limit: Option<Duration>) -> Error {
    let timed_out = async {
        match limit {
            Some(limit) => inner.clock.sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = inner.closed() => closed(),
        () = timed_out => {
            let message = format!("no response from {} in time", inner.info.name);
            Error::new(ErrorKind::Unavailable, message)
        }
    }
}

/// Lets a claim wait in the background.
async fn wait(inner: &Arc<ClientInner>, acquiring: Box<Acquiring>, key: Key) -> Outcome {
    let (sender, outcome) = oneshot::channel();
    let (cancel, cancelled) = oneshot::channel();
    let caller = Caller { inner: inner.clone(), key, cancel: Some(cancel) };
    if !inner.executor.spawn(Background::new(acquiring, sender, cancelled).run()) {
        return Err(closed());
    }
    let outcome = outcome.await;
    caller.has_outcome();
    outcome.unwrap_or_else(|_| Err(closed()))
}

/// The caller's side of a claim that waits. Dropped before the outcome came, it cancels the claim
/// and makes `flush` wait for the release.
struct Caller {
    inner: Arc<ClientInner>,
    key: Key,
    cancel: Option<oneshot::Sender<Pending>>,
}

impl Caller {
    fn has_outcome(mut self) {
        self.cancel = None;
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(cancel) = self.cancel.take() {
            // Fails if the task has ended already: then its grant is dropped, and so released,
            // together with the channel of the outcome.
            let _ended = cancel.send(self.inner.releaser.begin(self.key.clone()));
        }
    }
}
