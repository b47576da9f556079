//! Observers of an election.
//!
//! **How they observe.** They list the key and compare. Between two listings they wait for the
//! backend's hint for a claim without a queue entry, which comes when the holders have changed, and
//! for a second at most. The hint is subscribed to *before* the listing, so that a change right
//! behind it is not missed. What an observer reports is the difference between two listings: a
//! leader that came and went between them is not seen, and the last state always is.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::{FIRST_RETRY_PAUSE, LONGEST_RETRY_PAUSE, Leader};
use crate::backend::{Claim, Scope};
use crate::client::Client;
use crate::engine::ClientInner;
use crate::engine::acquire::closed;
use crate::error::Result;
use crate::key::Key;
use crate::lock::Lock;
use crate::support::backoff::Backoff;
use crate::token::FencingToken;

/// How often an observer lists the key if no hint comes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The first pause after a hint that brought nothing: a free key has no holder whose end could be
/// waited for, and some servers then send their hint at once.
const FIRST_RECHECK: Duration = Duration::from_millis(1);

/// One leadership, as far as an observer can tell.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Term {
    Token(FencingToken),
    Of(String),
}

/// Reports who leads: at once, then after every change.
///
/// It sends no request that could delay a leader or a candidate, and needs no more than the right
/// to list. Where the server pushes wake-ups, a change is seen at once, else within about a second.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("memory:").await?;
/// let election = locks.election("scheduler");
/// let mut seen = election.observe();
/// assert!(seen.next().await?.is_none()); // the state of now: there is no leader
/// let leading = election.campaign().await?;
/// assert_eq!(seen.next().await?.unwrap().token(), Some(leading.token()));
/// # Ok(()) }
/// ```
#[must_use = "an observer does nothing until `next` is awaited"]
pub struct Observer {
    claim: Result<Claim>,
    client: Client,
    /// What was reported last; `None` if nothing was, or if it is unknown since an error.
    seen: Option<Option<Term>>,
    retry_pauses: Backoff,
    /// Whether the last call ended with an error.
    failed: bool,
}

impl Observer {
    pub(super) fn new(lock: &Lock) -> Observer {
        Observer {
            claim: lock.claim().map(|(_, claim)| claim),
            client: lock.client().clone(),
            seen: None,
            retry_pauses: Backoff::new(FIRST_RETRY_PAUSE, LONGEST_RETRY_PAUSE),
            failed: false,
        }
    }

    /// The first call returns the leader of now, and each later one waits for a change: another
    /// leader, another term of the same one, or none. Changes between two calls are coalesced: each
    /// intermediate one need not be seen, the last state always is.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like: then it is not known who leads. The call can be repeated: it
    /// waits for a moment first, and returns the leader also if it is the one that was reported
    /// before the error. `Closed` when the client is shut down.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future loses no change: the next call reports it.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        let claim = self.claim.clone()?;
        let inner = self.client.inner().clone();
        let seen = self.seen.clone();
        let pause = if self.failed { self.retry_pauses.next() } else { Duration::ZERO };
        let observing = async move {
            sleep(&inner, pause).await?;
            until_changed(&inner, &claim, seen.as_ref()).await
        };
        // No await behind this one: what it brought is reported, or still to be found.
        let outcome = self.client.inner().executor.run_while_wanted(observing).await;
        let outcome = outcome.and_then(|outcome| outcome);
        self.failed = outcome.is_err();
        match &outcome {
            Ok(leader) => {
                self.seen = Some(leader.as_ref().map(Leader::term));
                self.retry_pauses.reset();
            }
            Err(_) => self.seen = None,
        }
        outcome
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.claim.as_ref().map(|claim| &claim.key);
        f.debug_struct("Observer").field("key", &key).finish_non_exhaustive()
    }
}

/// Returns who leads as soon as that differs from what was seen.
async fn until_changed(
    inner: &Arc<ClientInner>,
    claim: &Claim,
    seen: Option<&Option<Term>>,
) -> Result<Option<Leader>> {
    let mut rechecks = Backoff::new(FIRST_RECHECK, POLL_INTERVAL);
    loop {
        let mut hint = pin!(inner.hint(claim));
        // Polled once before the listing: then it tells of a change behind the listing.
        let mut woken =
            poll_fn(|context| Poll::Ready(hint.as_mut().poll(context).is_ready())).await;
        let leader = look(inner, &claim.key).await?;
        if seen != Some(&leader.as_ref().map(Leader::term)) {
            return Ok(leader);
        }
        if !woken {
            tokio::select! {
                _hint = hint => woken = true,
                ended = sleep(inner, POLL_INTERVAL) => ended?,
            }
        }
        // A hint that fires too often must not make a hot loop.
        if woken {
            sleep(inner, rechecks.next()).await?;
        } else {
            rechecks.reset();
        }
    }
}

async fn look(inner: &Arc<ClientInner>, key: &Key) -> Result<Option<Leader>> {
    let (backend, key) = (inner.backend.clone(), key.clone());
    let list = async move { backend.list(Scope::Key(&key)).await };
    Ok(Leader::of(inner.admin_call(list).await?.pop()))
}

/// Waits on the client's own runtime. Fails when the client is shut down.
pub(super) async fn sleep(inner: &ClientInner, pause: Duration) -> Result<()> {
    if inner.is_closing() {
        return Err(closed());
    }
    if pause.is_zero() {
        return Ok(());
    }
    tokio::select! {
        () = inner.clock.sleep(pause) => Ok(()),
        () = inner.closed() => Err(closed()),
    }
}
