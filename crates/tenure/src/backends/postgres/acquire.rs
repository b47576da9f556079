//! Acquires a lock, by mode.
//!
//! `mode=lease` is one statement: see `lease::acquire`. In `mode=session` and `mode=row`, the
//! server's own lock decides, and the registry has the queue. This file has what both share.
//!
//! **State.** Two things that no statement changes together: the lock in the server's lock manager,
//! which only the holder's connection can release, and the row of the registry (`tenure_board`),
//! which any client writes.
//!
//! **Who changes it.** A claim tries the lock only if no other live waiter is first in the queue.
//! Foreign clients acquire the lock whenever it is free.
//!
//! **Invariant.** Only a success of the server's lock is a grant. The registry can delay a claim or
//! wake it for nothing, but never grant.
//!
//! **The race that this prevents.** Between a failed try and the new queue entry, the holder may
//! release: it finds no waiter in the registry and wakes none. So a claim that finds itself first
//! in the queue after it was added tries once more. From then on every release finds the entry.
//! The claim is registered for pushed messages, and the listening connection is open, before the
//! first try, so that no wake-up is missed. A holder whose connection breaks wakes no waiter; the
//! first waiter therefore rechecks every second.

use std::sync::Arc;

use super::ModeState;
use super::connection::pool::Pool;
use super::layout::registry;
use super::lease;
use super::row;
use crate::backend::{Attempt, Claim, Grant};
use crate::error::Result;
use crate::token::FencingToken;

pub(super) async fn try_acquire(
    pool: &Arc<Pool>,
    mode: &ModeState,
    claim: &Claim,
) -> Result<Attempt<Grant>> {
    match mode {
        ModeState::Lease => lease::acquire::try_acquire(pool, claim).await,
        ModeState::Session(locks) => {
            try_with_registry(pool, claim, || locks.try_acquire(claim)).await
        }
        ModeState::Row(locks) => {
            try_with_registry(pool, claim, || row::acquire::try_acquire(locks, claim)).await
        }
    }
}

/// Tries the server's own lock, and adds the claim to the queue of the registry if it is busy.
/// `try_lock` returns the token, or `None` if the lock is busy or another waiter is in front.
async fn try_with_registry<F>(
    pool: &Arc<Pool>,
    claim: &Claim,
    try_lock: impl Fn() -> F,
) -> Result<Attempt<Grant>>
where
    F: Future<Output = Result<Option<FencingToken>>>,
{
    if claim.waits {
        pool.push.register(claim.owner);
        pool.listen().await?;
    }
    if let Some(token) = try_lock().await? {
        return Ok(granted(pool, claim, token));
    }
    let busy = registry::busy(pool, claim).await?;
    // The holder may have released before the queue entry was there to be woken.
    if claim.waits
        && busy.ahead == Some(0)
        && let Some(token) = try_lock().await?
    {
        return Ok(granted(pool, claim, token));
    }
    Ok(Attempt::Busy(busy))
}

fn granted(pool: &Pool, claim: &Claim, token: FencingToken) -> Attempt<Grant> {
    pool.push.unregister(claim.owner);
    Attempt::Granted(Grant::new(token, claim.ttl))
}
