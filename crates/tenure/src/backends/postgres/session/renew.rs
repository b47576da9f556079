//! Renews the locks of the session: one round trip for all of them.
//!
//! There is no lease at the server. A renewal verifies that the session is still the one that holds
//! the locks, and restarts the server's limit for idle sessions, which ends the session of a holder
//! that hangs. Then the task's map says which claims hold their locks.

use std::time::Duration;

use super::{AdvisoryLock, SessionTask};
use crate::backend::{Claim, LostReason};
use crate::backends::postgres::layout::advisory::lock_number;
use crate::error::{Error, Result};

pub(super) async fn renew(task: &mut SessionTask, claims: &[Claim]) -> Vec<Result<Duration>> {
    if let Some(connection) = task.connection.clone()
        && !task.locks.is_empty()
    {
        match task.verify(&connection).await {
            // The session is still open, and its state is unknown.
            Err(error) if task.connection.is_some() => return vec![Err(error); claims.len()],
            // Either verified, or closed; in both cases the map is exact.
            Ok(()) | Err(_) => {}
        }
    }
    let renewed = |claim: &Claim| match task.locks.get(&lock_number(&claim.key)) {
        Some(lock) if is_grant(lock, claim) => Ok(claim.ttl),
        _ if task.lost_with_connection.contains(&claim.owner) => {
            Err(Error::gone(LostReason::SessionGone))
        }
        _ => Err(Error::not_held()),
    };
    claims.iter().map(renewed).collect()
}

/// Whether a renewal is about this grant, and not an earlier one of the same owner.
fn is_grant(lock: &AdvisoryLock, claim: &Claim) -> bool {
    lock.owner == claim.owner && claim.token.is_none_or(|token| token == lock.token)
}
