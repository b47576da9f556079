//! Waits until a lock may be free, or may be lost.
//!
//! Both are hints: the engine repeats its request at least every third of the ttl, and counts its
//! own deadline. What arrives, and the race between a pushed grant and a busy response, is in
//! `push`. A pushed grant of `mode=lease` saves the next request. In the other modes a message only
//! says that the claim is first in the queue, because the lock can be acquired only on this
//! client's own connection.

use std::time::Duration;

use super::ModeState;
use super::connection::pool::Pool;
use crate::backend::{Claim, Grant};
use crate::support::wakeups::Signal;

/// How often a claim polls that has no queue entry, or no wake-ups because of a pooler.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(250);

pub(super) async fn until_free(pool: &Pool, claim: &Claim) -> Option<Grant> {
    match pool.push.wait(claim.owner).await {
        Some(Signal::Granted { token, .. }) => Some(pool.grant(claim, token)),
        // An evicted claim sends another request too: the eviction may be of an earlier grant.
        Some(Signal::Recheck { .. } | Signal::Evicted { .. }) => None,
        // The claim does not wait in the queue, so that no message will come.
        None => {
            tokio::time::sleep(POLL_INTERVAL).await;
            None
        }
    }
}

pub(super) async fn until_lost(pool: &Pool, mode: &ModeState, claim: &Claim) {
    let owner = claim.owner;
    match mode {
        ModeState::Lease => pool.push.until_lost(owner, || true).await,
        // The task notifies when the connection has ended.
        ModeState::Session(locks) => pool.push.until_lost(owner, || locks.is_held(owner)).await,
        ModeState::Row(locks) => tokio::select! {
            () = pool.push.until_lost(owner, || locks.is_held(owner)) => {}
            () = locks.until_closed(owner) => {}
        },
    }
}
