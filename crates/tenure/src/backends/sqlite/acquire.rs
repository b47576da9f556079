//! Acquire: grants a free key, or queues the claim behind its holder. Never waits.
//!
//! All decisions are made in one write transaction (see `transaction` for the state, who may change
//! it, and the invariant). What is added here:
//!
//! - **Idempotence.** The owner of a claim is unique. A request of the owner that holds the key
//!   returns the same token and extends the lease, which also confirms an offer. A request of an
//!   owner in the queue refreshes its entry and keeps its position. Neither shortens anything, in
//!   whatever order requests are executed.
//! - **No overtaking.** A key is granted to a new claim only if `settle` found no holder, and it
//!   makes the first waiter the holder before it says so.
//! - **A holder that died.** The transaction does not probe the holder: most holders live, and the
//!   write lock blocks all other processes. The holder is probed after the transaction. If its
//!   session is dead, its rows are deleted in a second transaction, which offers the key to the
//!   first waiter, and the request is repeated. A session id is never used twice, so that the
//!   second transaction cannot delete rows of a session that lives.
//! - **Refresh without a write.** A waiter requests again at least every third of its ttl. While
//!   its entry still has two thirds of its lease and its holder lives, the response is read
//!   without the write lock, so that waiters do not block the holder's release.

use std::time::Duration;

use rusqlite::OptionalExtension;

use super::connection::store::OpenStore;
use super::error;
use super::layout::row::{self, ClaimRow};
use super::liveness::Session;
use super::transaction::{Abort, WriteTransaction};
use super::wake_socket::owner_bytes;
use crate::backend::{Attempt, Busy, Claim, Grant};
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

/// How many dead holders of one key a single request removes: each time, the key went to a waiter
/// that lived a moment ago.
const DEAD_HOLDERS: u32 = 8;

// A request that comes late, or has a shorter ttl, shortens nothing: hence `max`.
const CONFIRM: &str = "
UPDATE claim SET ttl = max(ttl, ?2), expires = max(expires, ?3) WHERE key = ?1 AND place = 0";
const REFRESH: &str = "
UPDATE claim SET ttl = max(ttl, ?3), expires = max(expires, ?4)
WHERE key = ?1 AND owner = ?2 AND place > 0 AND expires > ?5 RETURNING place";
const DELETE_EXPIRED: &str = "DELETE FROM claim WHERE key = ?1 AND place > 0 AND expires <= ?2";
const LAST_POSITION: &str = "SELECT coalesce(max(place), 0) FROM claim WHERE key = ?1";
const INSERT: &str = "
INSERT INTO claim (key, place, owner, token, ttl, expires, since, session, pid, note)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";

/// The outcome of one transaction.
enum Acquired {
    Granted(FencingToken),
    /// Another owner holds the key.
    Busy {
        holder: Box<ClaimRow>,
        /// How many waiters are ahead, if the claim is in the queue.
        ahead: Option<u32>,
    },
}

pub(super) fn try_acquire(store: &mut OpenStore, claim: &Claim) -> Result<Attempt<Grant>> {
    if !store.is_file_in_place() {
        return Err(error::replaced(&store.path));
    }
    let session = store.session()?;
    if let Some(busy) = busy_without_write(store, claim)? {
        return Ok(Attempt::Busy(busy));
    }
    let mut dead_holders = 0;
    loop {
        let acquired = store.transact(|transaction| acquire(transaction, claim, session))?;
        let (holder, ahead) = match acquired {
            Acquired::Granted(token) => {
                store.queued.remove(&claim.owner);
                return Ok(Attempt::Granted(Grant::new(token, claim.ttl)));
            }
            Acquired::Busy { holder, ahead } => (holder, ahead),
        };
        match store.find_dead(holder.session) {
            Some(dead) if dead_holders < DEAD_HOLDERS => store.remove_dead_session(dead)?,
            _ => {
                if ahead.is_some() {
                    store.queued.insert(claim.owner);
                }
                return Ok(Attempt::Busy(busy(store, &claim.key, &holder, ahead)));
            }
        }
        dead_holders += 1;
    }
}

/// For a claim that is in the queue: the busy response without the write lock, as long as its queue
/// entry has most of its lease left and the holder lives. `None` if the transaction has to decide.
fn busy_without_write(store: &OpenStore, claim: &Claim) -> Result<Option<Busy>> {
    if !store.queued.contains(&claim.owner) {
        return Ok(None);
    }
    let now = store.boot.now_ms();
    let Some(holder) = store.head(&claim.key)? else { return Ok(None) };
    if !holder.is_holder() || holder.expires <= now || holder.owner == claim.owner {
        return Ok(None);
    }
    let Some(entry) = store.queue_entry(&claim.key, claim.owner)? else { return Ok(None) };
    let fresh = entry.expires - now > whole_ms(claim.ttl) / 3 * 2;
    if !fresh || store.find_dead(holder.session).is_some() {
        return Ok(None);
    }
    let ahead = store.ahead(&claim.key, entry.position, now)?;
    Ok(Some(busy(store, &claim.key, &holder, Some(ahead))))
}

fn busy(store: &OpenStore, key: &Key, holder: &ClaimRow, ahead: Option<u32>) -> Busy {
    let now = store.boot.now_ms();
    let mut busy = Busy::new(key.clone());
    busy.holder = Some(Box::new(holder.holder(now)));
    busy.retry_after = Some(holder.left(now));
    busy.ahead = ahead;
    busy
}

/// Grants the key if it is free or already held by this owner; else adds the claim to the queue, if
/// it waits.
fn acquire(
    transaction: &mut WriteTransaction<'_>,
    claim: &Claim,
    session: Session,
) -> Result<Acquired, Abort> {
    match transaction.settle(&claim.key)? {
        None => {
            let token = transaction.next_token()?;
            insert(transaction, claim, session, 0, Some(token))?;
            Ok(Acquired::Granted(token))
        }
        Some(ClaimRow { owner, token: Some(token), .. }) if owner == claim.owner => {
            let ttl = whole_ms(claim.ttl);
            transaction.execute(CONFIRM, (claim.key.as_str(), ttl, transaction.end_of(ttl)))?;
            Ok(Acquired::Granted(token))
        }
        Some(holder) => {
            let ahead =
                if claim.waits { Some(enqueue(transaction, claim, session)?) } else { None };
            Ok(Acquired::Busy { holder: Box::new(holder), ahead })
        }
    }
}

/// Adds a claim to the queue, or refreshes its entry. Returns how many waiters are ahead of it.
fn enqueue(
    transaction: &mut WriteTransaction<'_>,
    claim: &Claim,
    session: Session,
) -> Result<u32, Abort> {
    let key = claim.key.as_str();
    let ttl = whole_ms(claim.ttl);
    let owner = owner_bytes(claim.owner);
    let refreshed = transaction
        .connection
        .prepare_cached(REFRESH)?
        .query_row((key, &owner[..], ttl, transaction.end_of(ttl), transaction.now), |row| {
            row.get(0)
        });
    let position = match refreshed.optional()? {
        Some(position) => position,
        None => {
            // Also an entry of this owner that has expired: it lost its position.
            transaction.execute(DELETE_EXPIRED, (key, transaction.now))?;
            let mut last = transaction.connection.prepare_cached(LAST_POSITION)?;
            let last: i64 = last.query_row([key], |row| row.get(0))?;
            insert(transaction, claim, session, last + 1, None)?;
            last + 1
        }
    };
    Ok(row::ahead(transaction.connection, &claim.key, position, transaction.now)?)
}

fn insert(
    transaction: &WriteTransaction<'_>,
    claim: &Claim,
    session: Session,
    position: i64,
    token: Option<FencingToken>,
) -> Result<(), Abort> {
    let ttl = whole_ms(claim.ttl);
    transaction.execute(
        INSERT,
        rusqlite::params![
            claim.key.as_str(),
            position,
            &owner_bytes(claim.owner)[..],
            token.map(FencingToken::as_i64),
            ttl,
            transaction.end_of(ttl),
            transaction.now,
            session.0,
            std::process::id(),
            claim.holder_info.encode(),
        ],
    )?;
    Ok(())
}

/// A ttl in whole milliseconds, rounded up: the store's lease must not end before the holder's.
pub(super) fn whole_ms(span: Duration) -> i64 {
    i64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_never_shorter_than_its_ttl() {
        assert_eq!(whole_ms(Duration::from_nanos(1)), 1);
        assert_eq!(whole_ms(Duration::from_nanos(50_000_001)), 51);
        assert_eq!(whole_ms(Duration::from_micros(50_001)), 51);
        assert_eq!(whole_ms(Duration::ZERO), 1);
        assert!(whole_ms(Duration::MAX).checked_add(whole_ms(Duration::MAX)).is_some());
    }
}
