//! Acquiring a lock: first the turn in the tables, then the server's own lock if the mode has one.
//!
//! **State.** The tables (see `lease::acquire`) name one claim per key that has the turn. In
//! `mode=lease` the turn is the lock. In `mode=session` and `mode=row` the claim that has the turn
//! also needs the server's own lock: a named lock of its connection, or a row lock of its
//! transaction.
//!
//! **Who may change it.** The turn goes from claim to claim in the order of the queue, by the
//! statements of any client of tenure. The server's own lock can also be held by a foreign client,
//! or for a moment by an evicted holder that has not released it yet.
//!
//! **Invariant.** A grant of `session` or `row` means that the claim had the server's own lock, and
//! after that still had the turn. So the server's own lock excludes, foreign clients too, and the
//! tables give order and tokens.
//!
//! **Race.** The turn can end, by an eviction or with a connection, between the two steps. The
//! record is therefore read once more after the server's own lock was acquired; see
//! `session::acquire` and `row::acquire`. A claim that has the turn, but finds the server's own
//! lock held, keeps its turn and is busy; `wait::until_free` tries again.

use std::time::Duration;

use super::layout::rows::LockSnapshot;
use super::lease::acquire::{acquire_free, acquire_or_queue};
use super::lease::other_modes;
use super::{Context, ServerLocks, row, session};
use crate::backend::{Attempt, Busy, Claim, Grant, Mode};
use crate::error::Result;
use crate::token::FencingToken;

/// The first pause before the server's own lock is tried again.
pub(super) const SERVER_LOCK_FIRST_RETRY: Duration = Duration::from_millis(20);
/// The pause before a lock is tried again that another claim of the same client has.
const SAME_CLIENT_RETRY: Duration = Duration::from_millis(100);

/// Which claim has the turn.
enum ClaimTurn {
    /// This one; the server's own lock is still to be acquired.
    Mine(Grant),
    /// Another one.
    Others(Busy),
}

/// The result of trying to acquire the server's own lock.
pub(super) enum ServerLockAttempt {
    /// The claim holds it, and has the turn.
    Granted(FencingToken),
    /// The claim has the turn, and the lock is still held by another: an evicted holder, or a
    /// foreign client.
    Blocked {
        /// For how long the claim has had the turn.
        turn_age: Duration,
    },
    /// The claim does not have the turn any more.
    TurnOver,
}

impl ServerLockAttempt {
    /// Another claim of this client has the lock, and will soon learn that its turn is over.
    pub(super) fn held_by_same_client() -> ServerLockAttempt {
        ServerLockAttempt::Blocked { turn_age: SAME_CLIENT_RETRY }
    }

    /// The lock was not granted; `turn` is the record of the key if the claim still has the turn.
    pub(super) fn blocked_or_turn_over(turn: Option<LockSnapshot>) -> ServerLockAttempt {
        match turn {
            Some(turn) => ServerLockAttempt::Blocked { turn_age: turn.held_for },
            None => ServerLockAttempt::TurnOver,
        }
    }
}

pub(super) async fn try_acquire(context: &Context, claim: &Claim) -> Result<Attempt<Grant>> {
    let turn = match acquire_turn(context, claim).await? {
        ClaimTurn::Mine(turn) => turn,
        ClaimTurn::Others(busy) => return Ok(Attempt::Busy(busy)),
    };
    let mut busy = Busy::new(claim.key.clone());
    match acquire_server_lock(context, claim, turn.token).await? {
        ServerLockAttempt::Granted(token) => {
            return Ok(Attempt::Granted(Grant { token, ..turn }));
        }
        // The claim keeps its turn while it waits; `until_free` tries the lock again.
        ServerLockAttempt::Blocked { .. } => {}
        ServerLockAttempt::TurnOver => busy.retry_after = Some(SERVER_LOCK_FIRST_RETRY),
    }
    Ok(Attempt::Busy(busy))
}

/// Acquires the turn: exclusively by the short statement if the key may be free and without
/// waiters. Only `mode=lease` has other modes, so that the turn is the lock.
async fn acquire_turn(context: &Context, claim: &Claim) -> Result<ClaimTurn> {
    let tables = &context.tables;
    let (attempt, wake) = match (claim.mode, claim.token) {
        (Mode::Shared, Some(token)) => {
            let (grant, wake) = other_modes::downgrade(tables, claim, token).await?;
            (Attempt::Granted(grant), wake)
        }
        (Mode::Shared | Mode::Permits { .. }, _) => other_modes::acquire(tables, claim).await?,
        (Mode::Exclusive, _) => {
            if tables.hints.may_be_free(claim)
                && let Some(token) = acquire_free(tables, claim).await?
            {
                return Ok(ClaimTurn::Mine(Grant::with_range(token, claim.ttl)));
            }
            acquire_or_queue(tables, claim).await?
        }
    };
    context.waiters.wake(&wake, claim.ttl).await;
    Ok(match attempt {
        Attempt::Granted(turn) => ClaimTurn::Mine(turn),
        Attempt::Busy(busy) => ClaimTurn::Others(busy),
    })
}

/// Acquires the server's own lock for a claim that has the turn, without waiting for it.
pub(super) async fn acquire_server_lock(
    context: &Context,
    claim: &Claim,
    token: FencingToken,
) -> Result<ServerLockAttempt> {
    let tables = &context.tables;
    match &context.server_locks {
        ServerLocks::None => Ok(ServerLockAttempt::Granted(token)),
        ServerLocks::Named(locks) => session::acquire::acquire(locks, tables, claim).await,
        ServerLocks::Row(locks) => row::acquire::acquire(locks, tables, claim, token).await,
    }
}
