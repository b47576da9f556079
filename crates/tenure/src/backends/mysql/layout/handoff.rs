//! The statements that release a lock and pass it to the next waiter.
//!
//! **The short handoff** ([`Statements::hand_off_held`]) is one UPDATE of two rows: that of the
//! key, and the queue entry of the next owner, which it ends. It does no more than the transaction
//! of [`Statements::release`], and leaves to it what is not simple: no waiter, a claim that does
//! not hold.
//!
//! **Why one statement is enough.** It reads the queue before it has the lock of the key's row, so
//! that the queue may have changed when it gets that lock. Entries that were added since are behind
//! the first one, because their numbers (`seat`) are given under the lock of the key's row. The
//! first one may have been cancelled, or refreshed: it counts only if its own row, which is locked
//! before anything is written, is still what was read. Above all the end of its lease has to be:
//! the waiter counts from its last request.

use super::literals::{Literals, WAKE_LOCK_PREFIX};
use super::rows::KeyState;
use super::statements::{NOW, Statements, in_other_mode};
use crate::backend::Claim;
use crate::backends::mysql::config::LockMode;
use crate::token::TOKENS_PER_GRANT;

/// An end that has passed by any clock.
pub(super) const LONG_AGO: &str = "'1970-01-02'";
/// The wake id of the client that the last short handoff of this connection was to.
const NEXT_WAKE_ID: &str = "@tenure_next";

impl Statements {
    /// Releases a lock without waiters. One changed row means that the claim held it until now.
    pub(crate) fn release_uncontended(&self, claim: &Claim) -> String {
        let lease = self.lease;
        let ended = self.has_ended(lease);
        let Literals { key, owner, .. } = Literals::of(claim);
        format!(
            "UPDATE {lease} SET owner='',until={NOW} \
             WHERE k={key} AND owner={owner} AND NOT {ended} AND queued=0"
        )
    }

    /// Releases or cancels a claim, and passes the lock to the next waiter. The first result set
    /// has `was_held`: whether the claim held the lock until now. The last one is the [`KeyState`].
    pub(crate) fn release(&self, claim: &Claim) -> String {
        let Statements { lease, waiter, .. } = self;
        let ended = self.has_ended(lease);
        let entry_ended = self.entry_ended(waiter);
        let Literals { key, owner, .. } = Literals::of(claim);
        // FOR UPDATE: the row stays locked until the commit, so that `was_held` is still true when
        // the UPDATE releases the lock. An expired entry of another claim must not be handed the
        // lock, so it is deleted first.
        format!(
            "START TRANSACTION;\
             SELECT owner={owner} AND NOT {ended} AS was_held FROM {lease} WHERE k={key} \
             FOR UPDATE;\
             UPDATE {lease} SET owner='',until={NOW} WHERE k={key} AND owner={owner};\
             DELETE FROM {waiter} WHERE k={key} AND (owner={owner} OR {entry_ended});\
             {handoff}{state};COMMIT",
            handoff = self.handoff(&key),
            state = KeyState::select(self, &key, &owner, "@tenure_handed"),
        )
    }

    /// Passes a lock that the claim holds to the first waiter, if there is one: then two rows are
    /// changed, and the last insert id is above 0 if the waiter is of this client. `queued` may be
    /// too high for a while, and is never too low.
    ///
    /// The second statement wakes the waiter's client, in the same packet: a process that ends
    /// right after its release has woken the next one. It fails if that client has no wake
    /// connection, or is this one. In `mode=session` and `mode=row` the server's own lock has to be
    /// released before the client is woken: there the statement returns its `wake_id`.
    pub(crate) fn hand_off_held(&self, claim: &Claim, own_wake_id: &str) -> String {
        let Statements { lease, waiter, .. } = self;
        let has_ended = self.has_ended("l");
        let entry_ended = self.entry_ended("e");
        let is_exclusive = self.is_exclusive("w");
        let Literals { key, owner, .. } = Literals::of(claim);
        // Not if no row was changed: the variable is then that of an earlier handoff.
        let wake = match self.mode {
            LockMode::Lease => format!(
                "KILL QUERY IF(ROW_COUNT()>0 AND {NEXT_WAKE_ID}<>'{own_wake_id}',IS_USED_LOCK(\
                 CONVERT(CONCAT('{WAKE_LOCK_PREFIX}',{NEXT_WAKE_ID}) USING utf8mb4)),0)"
            ),
            LockMode::Session | LockMode::Row => format!("SELECT {NEXT_WAKE_ID} AS wake_id"),
        };
        // The values come from the copy of the entry, because the entry itself is changed as well,
        // in an order that is not defined.
        format!(
            "UPDATE {lease} l STRAIGHT_JOIN (SELECT e.seat,e.owner,e.until,e.note,e.home,e.bell \
             FROM {waiter} e WHERE e.k={key} AND NOT {entry_ended} ORDER BY e.seat LIMIT 1) n \
             STRAIGHT_JOIN {waiter} w ON w.k=l.k AND w.seat=n.seat AND w.owner=n.owner \
             AND w.until=n.until AND w.home=n.home AND w.bell=n.bell \
             SET l.owner=n.owner,l.since={NOW},l.note=n.note,l.until=n.until,l.home=n.home,\
             l.bell=({NEXT_WAKE_ID}:=n.bell),l.queued=GREATEST(l.queued-1,0),\
             l.token=IF(n.bell='{own_wake_id}',LAST_INSERT_ID(l.token+{TOKENS_PER_GRANT}),\
             l.token+{TOKENS_PER_GRANT}),w.until={LONG_AGO} \
             WHERE l.k={key} AND l.owner={owner} AND NOT {has_ended}{is_exclusive};{wake}"
        )
    }

    /// The condition that the queue entry in this table wants the key for itself alone: only
    /// `other_modes` hands a key off to others.
    fn is_exclusive(&self, table: &str) -> String {
        if !self.other_modes {
            return String::new();
        }
        format!(" AND NOT {}", in_other_mode(&format!("{table}.home")))
    }

    /// If the lock is free, makes the first waiter its owner and removes it from the queue. Entries
    /// that have ended were deleted before. The end of the entry becomes the end of the lease: the
    /// waiter knows it without another request. Sets `@tenure_handed` to the number of new owners.
    pub(super) fn handoff(&self, key: &str) -> String {
        let Statements { lease, waiter, .. } = self;
        let is_free = self.is_free("l");
        let is_exclusive = self.is_exclusive("w");
        // The new owner is removed from the queue by its name, also if it became the owner in
        // another way. Then `queued` is counted, under the lock of the row: it is exact here.
        format!(
            "UPDATE {lease} l JOIN {waiter} w ON w.k=l.k SET l.owner=w.owner,\
             l.token=l.token+{TOKENS_PER_GRANT},l.since={NOW},l.note=w.note,l.bell=w.bell,\
             l.until=w.until,l.home=w.home \
             WHERE l.k={key} AND {is_free}{is_exclusive} AND \
             w.seat=(SELECT s FROM (SELECT MIN(seat) s FROM {waiter} WHERE k={key}) m);\
             SET @tenure_handed=ROW_COUNT();\
             DELETE w FROM {waiter} w JOIN {lease} l ON l.k=w.k AND l.owner=w.owner \
             WHERE w.k={key};\
             UPDATE {lease} SET queued=(SELECT COUNT(*) FROM {waiter} w WHERE w.k={key}) \
             WHERE k={key};"
        )
    }
}
