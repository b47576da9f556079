//! Acquire: grants a key that has room, or queues the claim behind its holders. Never waits.
//!
//! All decisions are made in one write transaction (see `transaction` for the state, who may change
//! it, and the invariant; `holders` for several holders of a key). What is added here:
//!
//! - **Idempotence.** The owner of a claim is unique. A request of an owner that holds the key
//!   returns the same token and extends the lease, which also confirms an offer. A request of an
//!   owner in the queue refreshes its entry and keeps its position. Neither shortens anything, in
//!   whatever order requests are executed.
//! - **No overtaking.** A key is granted to a new claim only if `settle` left no waiter, and it has
//!   let in those that fit before it says so.
//! - **A holder that died.** The transaction does not probe the holders: most holders live, and the
//!   write lock blocks all other processes. They are probed after the transaction. If a session is
//!   dead, its rows are deleted in another transaction, which hands the key off, and the request is
//!   repeated. A session id is never used twice, so that this transaction cannot delete rows of a
//!   session that lives.
//! - **Refresh without a write.** A waiter requests again at least every third of its ttl. While
//!   its entry still has two thirds of its lease and nothing lets it in, the response is read
//!   without the write lock, so that waiters do not block the holder's release.

use std::time::Duration;

use rusqlite::OptionalExtension;

use super::connection::store::OpenStore;
use super::error;
use super::holders::{fits, is_same_kind};
use super::layout::row::{self, ClaimRow};
use super::liveness::Session;
use super::transaction::{Abort, Settled, WriteTransaction};
use super::wake_socket::owner_bytes;
use crate::backend::{Attempt, Busy, Claim, Grant, Mode};
use crate::error::{Error, Result};
use crate::token::FencingToken;

/// How often a single request removes dead holders of its key: each time, the key went to waiters
/// that lived a moment ago.
const DEAD_HOLDERS: u32 = 8;

// A request that comes late, or has a shorter ttl, shortens nothing: hence `max`.
const CONFIRM: &str = "
UPDATE claim SET ttl = max(ttl, ?2), expires = max(expires, ?3) WHERE key = ?1 AND place = 0";
const REFRESH: &str = "
UPDATE claim SET ttl = max(ttl, ?3), expires = max(expires, ?4), weight = ?6, capacity = ?7
WHERE key = ?1 AND owner = ?2 AND place > 0 AND expires > ?5 RETURNING place";
const DELETE_EXPIRED: &str = "DELETE FROM claim WHERE key = ?1 AND place > 0 AND expires <= ?2";
const LAST_POSITION: &str = "SELECT coalesce(max(place), 0) FROM claim WHERE key = ?1";
const INSERT: &str = "
INSERT INTO claim (key, place, owner, token, ttl, expires, since, session, pid, note, weight,
    capacity, tokens)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";

/// The outcome of one transaction.
enum Acquired {
    Granted(Grant),
    /// Others hold the key.
    Busy {
        holders: Vec<ClaimRow>,
        /// How many waiters are ahead, if the claim is in the queue.
        ahead: Option<u32>,
    },
    /// Others use the key as a lock, and the claim is to permits, or the reverse.
    OtherKind {
        holders: Vec<ClaimRow>,
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
    let mut rounds = 0;
    let queued = store.queued.contains(&claim.owner);
    loop {
        let acquired =
            store.transact(|transaction| acquire(transaction, claim, session, queued))?;
        let (holders, ahead) = match acquired {
            Acquired::Granted(grant) => {
                store.queued.remove(&claim.owner);
                return Ok(Attempt::Granted(grant));
            }
            Acquired::Busy { holders, ahead } => (holders, Ok(ahead)),
            Acquired::OtherKind { holders } => {
                let mode = holders[0].mode;
                (holders, Err(Error::other_kind(&claim.key, mode)))
            }
        };
        let dead = store.find_dead_among(&holders);
        if dead.is_empty() || rounds == DEAD_HOLDERS {
            let ahead = ahead?;
            if ahead.is_some() {
                store.queued.insert(claim.owner);
            }
            return Ok(Attempt::Busy(busy(store, claim, &holders, ahead)));
        }
        for session in dead {
            store.remove_dead_session(session)?;
        }
        rounds += 1;
    }
}

/// For a claim that is in the queue: the busy response without the write lock, as long as its queue
/// entry has most of its lease left and nothing lets it in. `None` if the transaction has to
/// decide.
fn busy_without_write(store: &OpenStore, claim: &Claim) -> Result<Option<Busy>> {
    if !store.queued.contains(&claim.owner) {
        return Ok(None);
    }
    let now = store.boot.now_ms();
    let holders = store.holders(&claim.key)?;
    let settled = |holder: &ClaimRow| holder.expires > now && holder.owner != claim.owner;
    if holders.is_empty() || !holders.iter().all(settled) {
        return Ok(None);
    }
    let Some(entry) = store.queue_entry(&claim.key, claim.owner)? else { return Ok(None) };
    let fresh = entry.expires - now > whole_ms(claim.ttl) / 3 * 2;
    if !fresh || entry.mode != claim.mode || !store.find_dead_among(&holders).is_empty() {
        return Ok(None);
    }
    // Beside an exclusive holder nothing fits.
    if holders[0].mode != Mode::Exclusive {
        let first = store.first_waiter(&claim.key)?;
        let blocks = |first: &ClaimRow| {
            let lives = first.expires > now && store.find_dead(first.session).is_none();
            lives && !fits(&holders, first.mode)
        };
        if !first.is_some_and(|first| blocks(&first)) {
            return Ok(None);
        }
    }
    let ahead = store.ahead(&claim.key, entry.position, now)?;
    Ok(Some(busy(store, claim, &holders, Some(ahead))))
}

fn busy(store: &OpenStore, claim: &Claim, holders: &[ClaimRow], ahead: Option<u32>) -> Busy {
    let now = store.boot.now_ms();
    let mut busy = Busy::new(claim.key.clone());
    busy.holder = holders.first().map(|oldest| Box::new(oldest.holder(now)));
    busy.holders = u32::try_from(holders.len()).unwrap_or(u32::MAX);
    // The first end may let a waiter in.
    busy.retry_after = holders.iter().map(|holder| holder.left(now)).min();
    busy.ahead = ahead;
    busy
}

/// Grants the key if it has room or is already held by this owner; else adds the claim to the
/// queue, if it waits.
fn acquire(
    transaction: &mut WriteTransaction<'_>,
    claim: &Claim,
    session: Session,
    queued: bool,
) -> Result<Acquired, Abort> {
    if queued && !claim.mode.is_lock() {
        // The numbers of a semaphore may have changed: it may fit by those that it states now.
        refresh(transaction, claim)?;
    }
    let state = transaction.settle(&claim.key)?;
    let own = state.holders.iter().find(|holder| holder.owner == claim.owner);
    if let Some((token, tokens)) = own.and_then(|own| Some((own.token?, own.tokens))) {
        confirm(transaction, claim, &state)?;
        return Ok(Acquired::Granted(Grant { tokens, ..Grant::new(token, claim.ttl) }));
    }
    if !is_same_kind(&state.holders, claim.mode) {
        return Ok(Acquired::OtherKind { holders: state.holders });
    }
    if !state.queued && fits(&state.holders, claim.mode) {
        return Ok(Acquired::Granted(grant(transaction, claim, session, state)?));
    }
    let ahead = if claim.waits { Some(enqueue(transaction, claim, session)?) } else { None };
    Ok(Acquired::Busy { holders: state.holders, ahead })
}

/// Grants a key that is free, or beside the holders that it has.
fn grant(
    transaction: &mut WriteTransaction<'_>,
    claim: &Claim,
    session: Session,
    mut state: Settled,
) -> Result<Grant, Abort> {
    let (token, tokens) = transaction.next_token(claim.mode)?;
    if state.holders.is_empty() {
        insert(transaction, claim, session, 0, Some((token, tokens)))?;
    } else {
        transaction.make_room(&claim.key, &mut state)?;
        transaction.join(claim, session.0, (token, tokens), whole_ms(claim.ttl))?;
    }
    Ok(Grant { tokens, ..Grant::new(token, claim.ttl) })
}

/// Extends the lease of an owner that holds the key.
fn confirm(
    transaction: &WriteTransaction<'_>,
    claim: &Claim,
    state: &Settled,
) -> Result<(), Abort> {
    let ttl = whole_ms(claim.ttl);
    if state.marker.is_some() {
        transaction.renew_one_of_several(&claim.key, claim.owner, ttl, None)?;
    } else {
        transaction.execute(CONFIRM, (claim.key.as_str(), ttl, transaction.end_of(ttl)))?;
    }
    Ok(())
}

/// Extends the queue entry of a claim, with the numbers that it states now. Returns its position,
/// if it has an entry that has not expired.
fn refresh(transaction: &WriteTransaction<'_>, claim: &Claim) -> Result<Option<i64>, Abort> {
    let ttl = whole_ms(claim.ttl);
    let owner = owner_bytes(claim.owner);
    let (weight, limit) = (claim.mode.weight(), claim.mode.limit());
    let (end, now) = (transaction.end_of(ttl), transaction.now);
    let change = (claim.key.as_str(), &owner[..], ttl, end, now, weight, limit);
    let mut refresh = transaction.connection.prepare_cached(REFRESH)?;
    Ok(refresh.query_row(change, |row| row.get(0)).optional()?)
}

/// Adds a claim to the queue, or refreshes its entry. Returns how many waiters are ahead of it.
fn enqueue(
    transaction: &mut WriteTransaction<'_>,
    claim: &Claim,
    session: Session,
) -> Result<u32, Abort> {
    let key = claim.key.as_str();
    let position = match refresh(transaction, claim)? {
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
    grant: Option<(FencingToken, u32)>,
) -> Result<(), Abort> {
    let ttl = whole_ms(claim.ttl);
    let (token, tokens) = grant.unzip();
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
            claim.mode.weight(),
            claim.mode.limit(),
            tokens.unwrap_or(1),
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
