//! Acquires an advisory lock on the client's session.
//!
//! **State.** The lock is in the server's lock manager, per session: the server releases it when
//! the session ends, and knows nothing of owners or tokens. The registry (`tenure_board`) has
//! owner, token and queue. The task's own map says which claim of this client has which lock.
//!
//! **Who changes it.** Only the session's task uses the connection. Foreign clients may acquire the
//! same advisory lock; they respect neither the queue nor the registry, and the server excludes
//! them all the same.
//!
//! **Invariants.**
//! - A lock that the session has is in the map, and only the claim in the map is told that it holds
//!   the lock. `pg_try_advisory_lock` succeeds again for the same session, so that the map decides
//!   between two claims of this client.
//! - A repeated request of the holder is granted only after the server has responded on this very
//!   session: the engine counts the lease from this request on, and the server may have ended the
//!   session meanwhile.
//!
//! **The race that this prevents.** An advisory lock is not transactional: a statement that fails
//! after it acquired the lock (for instance because the registry row is locked) leaves the lock
//! with the session, without a claim. So every failure is followed by an unlock, and if that fails
//! too, the session is closed.

use super::{AdvisoryLock, SessionTask};
use crate::backend::Claim;
use crate::backends::postgres::connection::statement::values;
use crate::backends::postgres::error;
use crate::backends::postgres::layout::advisory::{ACQUIRE, UNLOCK, lock_number};
use crate::backends::postgres::layout::columns::{get, key_bytes, note, token, ttl_seconds};
use crate::error::Result;
use crate::token::FencingToken;

/// Returns the token, or `None` if the lock is busy.
pub(super) async fn try_acquire(
    task: &mut SessionTask,
    claim: &Claim,
) -> Result<Option<FencingToken>> {
    let number = lock_number(&claim.key);
    let connection = task.connection().await?;
    match task.locks.get(&number) {
        Some(lock) if lock.owner == claim.owner && lock.key == claim.key => {
            let token = lock.token;
            task.verify(&connection).await?;
            return Ok(Some(token));
        }
        // Another claim of this client has it: the server would count, and not refuse.
        Some(_) => return Ok(None),
        None => {}
    }
    let limits = task.limits.with(claim.ttl);
    let values = values![
        number,
        key_bytes(&claim.key),
        claim.owner.to_string(),
        ttl_seconds(claim.ttl),
        note(&claim.holder_info),
        task.pool.channel.clone(),
        limits.idle(connection.version),
        limits.wait(),
    ];
    let acquired = connection.query_once(&ACQUIRE, values).await.and_then(|rows| {
        let row = rows.first().ok_or_else(|| error::unexpected("no row for an acquire"))?;
        let number: Option<i64> = get(row, "token")?;
        number.map_or(Ok(None), token)
    });
    match acquired {
        Ok(Some(token)) => {
            task.limits = limits;
            let lock = AdvisoryLock { key: claim.key.clone(), owner: claim.owner, token };
            task.locks.insert(number, lock);
            task.held.lock().insert(claim.owner);
            Ok(Some(token))
        }
        Ok(None) => Ok(None),
        Err(error) => {
            // The session may have the lock although the statement failed.
            if connection.query(&UNLOCK, values![number]).await.is_err() {
                task.lose_all();
            }
            Err(error)
        }
    }
}
