//! Several holders of one key: readers, or permits of a semaphore.
//!
//! **State.** A key with one holder has its row in `claim`, at position 0, in any mode. Before
//! another one joins it, that row is moved to the table `holder`, and a *marker* is left in its
//! place: a row with token 0, without an owner, of no session. The marker stays until the last
//! holder has left; then the key is free.
//!
//! **Who may change it.** Only a write transaction (see `transaction`).
//!
//! **Invariant.** Rows of `holder` count only while their key has a marker, and the marker does not
//! end before any of them. Each of them has its own lease, token and session: what ends, is
//! evicted or dies is one of them.
//!
//! **Why a marker.** A program of schema 1 that opened the file before it was brought up to date
//! goes on with statements that know only `claim`. To it the key has one holder: it queues behind
//! the marker, and removes it only after its end, when none of the leases behind it can still run.
//! It cannot evict it, since 0 is no token, and finds no liveness file, so that it does not take it
//! for dead. What such a program removes with the marker are rows of `holder` that have expired:
//! they are deleted before the next marker is set. It may also hand a free key to a waiting reader,
//! which then has its row at position 0 as one that came alone.

use rusqlite::OptionalExtension;

use super::layout::row::{self, ClaimRow};
use super::transaction::{Abort, Settled, WriteTransaction};
use super::wake_socket::owner_bytes;
use crate::backend::{Claim, HolderInfo, Mode, Owner};
use crate::key::Key;
use crate::token::FencingToken;

const DELETE_LEFTOVERS: &str = "DELETE FROM holder WHERE key = ?1";
const MOVE_HOLDER: &str = "
INSERT INTO holder (key, token, owner, weight, capacity, tokens, ttl, expires, since, session, pid,
    note)
SELECT key, token, owner, weight, capacity, tokens, ttl, expires, since, session, pid, note
FROM claim WHERE key = ?1 AND place = 0";
const SET_MARKER: &str = "
UPDATE claim SET owner = zeroblob(24), token = 0, tokens = 1, session = 0, pid = 0, note = ?2
WHERE key = ?1 AND place = 0";
const SET_MARKER_END: &str =
    "UPDATE claim SET expires = ?2, ttl = max(ttl, ?3) WHERE key = ?1 AND place = 0";
const RAISE_MARKER: &str = "
UPDATE claim SET expires = max(expires, ?2), ttl = max(ttl, ?3)
WHERE key = ?1 AND place = 0 AND token = 0";
const MOVE_WAITER: &str = "
INSERT INTO holder (key, token, owner, weight, capacity, tokens, ttl, expires, since, session, pid,
    note)
SELECT key, ?3, owner, weight, capacity, ?4, ttl, ?5, ?6, session, pid, note
FROM claim WHERE key = ?1 AND place = ?2";
const DELETE_WAITER: &str = "DELETE FROM claim WHERE key = ?1 AND place = ?2";
const INSERT: &str = "
INSERT INTO holder (key, token, owner, weight, capacity, tokens, ttl, expires, since, session, pid,
    note)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
const DELETE_EXPIRED: &str = "DELETE FROM holder WHERE key = ?1 AND expires <= ?2";
const DELETE_ONLY: &str = "DELETE FROM claim WHERE key = ?1 AND place = 0 AND token = ?2";
const DELETE_GRANT: &str = "DELETE FROM holder WHERE key = ?1 AND token = ?2";
const DELETE_OWNER: &str = "DELETE FROM holder WHERE key = ?1 AND owner = ?2 RETURNING expires";
/// A renewal names its grant; a repeated request confirms whatever its owner has.
const RENEW: &str = "
UPDATE holder SET ttl = max(ttl, ?3), expires = max(expires, ?4)
WHERE key = ?1 AND owner = ?2 AND expires > ?5 AND (?6 IS NULL OR token = ?6)";
const EXTEND_OFFER: &str = "
UPDATE holder SET expires = max(expires, ?3 + min(ttl, ?4)) WHERE key = ?1 AND owner = ?2
RETURNING expires, ttl";

/// Whether a claim of this mode fits beside the holders: the rule of [`Mode`].
pub(super) fn fits(holders: &[ClaimRow], mode: Mode) -> bool {
    let used: u64 = holders.iter().map(|holder| u64::from(holder.mode.weight())).sum();
    used + u64::from(mode.weight()) <= u64::from(mode.limit()) && is_same_kind(holders, mode)
}

/// Whether the holders use the key as this mode does: as a lock, or as a semaphore.
pub(super) fn is_same_kind(holders: &[ClaimRow], mode: Mode) -> bool {
    holders.iter().all(|holder| holder.mode.is_lock() == mode.is_lock())
}

impl WriteTransaction<'_> {
    /// The holders behind a marker whose leases have not ended. Deletes the others.
    pub(super) fn living_holders(&self, key: &Key) -> Result<Vec<ClaimRow>, Abort> {
        let mut holders = row::holders_of(self.connection, key.as_str())?;
        let all = holders.len();
        holders.retain(|holder| holder.expires > self.now);
        if holders.len() < all {
            self.execute(DELETE_EXPIRED, (key.as_str(), self.now))?;
        }
        Ok(holders)
    }

    /// Moves the only holder of a key behind a marker, so that another one can join it.
    pub(super) fn make_room(&self, key: &Key, state: &mut Settled) -> Result<(), Abort> {
        if state.marker.is_some() {
            return Ok(());
        }
        let only = &state.holders[0];
        // For programs that take the marker for a holder.
        let note = HolderInfo::new(format!("several ({})", only.mode.name()), "", 0, "").encode();
        self.execute(DELETE_LEFTOVERS, [key.as_str()])?;
        self.execute(MOVE_HOLDER, [key.as_str()])?;
        self.execute(SET_MARKER, (key.as_str(), note))?;
        state.marker = Some((only.expires, only.ttl));
        Ok(())
    }

    /// Moves a waiter to the holders, as the row says that it is one now.
    pub(super) fn move_waiter(
        &self,
        key: &Key,
        position: i64,
        holder: &ClaimRow,
    ) -> Result<(), Abort> {
        let token = holder.token.map(FencingToken::as_i64);
        let change = (key.as_str(), position, token, holder.tokens, holder.expires, holder.since);
        self.execute(MOVE_WAITER, change)?;
        self.execute(DELETE_WAITER, (key.as_str(), position))?;
        Ok(())
    }

    /// Adds a holder for whom there is room. `settle` has found that it fits.
    pub(super) fn join(
        &self,
        claim: &Claim,
        session: i64,
        (token, tokens): (FencingToken, u32),
        ttl: i64,
    ) -> Result<(), Abort> {
        let end = self.end_of(ttl);
        self.execute(
            INSERT,
            rusqlite::params![
                claim.key.as_str(),
                token.as_i64(),
                &owner_bytes(claim.owner)[..],
                claim.mode.weight(),
                claim.mode.limit(),
                tokens,
                ttl,
                end,
                self.now,
                session,
                std::process::id(),
                claim.holder_info.encode(),
            ],
        )?;
        self.raise_marker(&claim.key, end, ttl)
    }

    /// Extends the lease of one of several holders. `false` if it is none of them.
    pub(super) fn renew_one_of_several(
        &self,
        key: &Key,
        owner: Owner,
        ttl: i64,
        token: Option<FencingToken>,
    ) -> Result<bool, Abort> {
        let (end, token) = (self.end_of(ttl), token.map(FencingToken::as_i64));
        let bytes = owner_bytes(owner);
        let change = (key.as_str(), &bytes[..], ttl, end, self.now, token);
        if self.execute(RENEW, change)? == 0 {
            return Ok(false);
        }
        self.raise_marker(key, end, ttl)?;
        Ok(true)
    }

    pub(super) fn extend_offer_of_several(
        &self,
        key: &Key,
        owner: Owner,
        longest: i64,
    ) -> Result<(), Abort> {
        let owner = owner_bytes(owner);
        let mut extend = self.connection.prepare_cached(EXTEND_OFFER)?;
        let change = (key.as_str(), &owner[..], self.end_of(0), longest);
        let extended = extend.query_row(change, |row| Ok((row.get(0)?, row.get(1)?)));
        match extended.optional()? {
            Some((end, ttl)) => self.raise_marker(key, end, ttl),
            None => Ok(()),
        }
    }

    /// Removes one of several holders. Returns the end of its lease.
    pub(super) fn delete_one_of_several(
        &self,
        key: &Key,
        owner: Owner,
    ) -> Result<Option<i64>, Abort> {
        let owner = owner_bytes(owner);
        let mut delete = self.connection.prepare_cached(DELETE_OWNER)?;
        Ok(delete.query_row((key.as_str(), &owner[..]), |row| row.get(0)).optional()?)
    }

    /// Removes a holder of which this row was read, the only one or one of several.
    pub(super) fn delete_holder(&self, key: &Key, holder: &ClaimRow) -> Result<(), Abort> {
        let token = holder.token.map(FencingToken::as_i64);
        if self.execute(DELETE_ONLY, (key.as_str(), token))? == 0 {
            self.execute(DELETE_GRANT, (key.as_str(), token))?;
        }
        Ok(())
    }

    /// Sets the end of a marker to the last end of its holders: some may have come or left.
    pub(super) fn set_marker_end(&self, key: &Key, state: &Settled) -> Result<(), Abort> {
        let Some((end, ttl)) = state.marker else { return Ok(()) };
        let last = state.holders.iter().map(|holder| holder.expires).max().unwrap_or(end);
        let longest = state.holders.iter().map(|holder| holder.ttl).max().unwrap_or(ttl);
        if end != last || ttl < longest {
            self.execute(SET_MARKER_END, (key.as_str(), last, longest))?;
        }
        Ok(())
    }

    /// A marker never ends before one of its holders.
    fn raise_marker(&self, key: &Key, end: i64, ttl: i64) -> Result<(), Abort> {
        self.execute(RAISE_MARKER, (key.as_str(), end, ttl))?;
        Ok(())
    }
}
