//! The statements that change the tables.
//!
//! **State.** The row of a key in the lock table names the owner, its token and the end of its
//! lease. The rows of a key in the waiter table are the queue entries, in the order of their column
//! `seat`; each one has an end of its own. The row of a key stays when the lock is released, with
//! its token. In `mode=lease` the row *is* the lock. In the other modes it records whose turn it
//! is, and a named lock or a row lock decides; a record then also ends with the connection whose id
//! stands in its column `home`.
//!
//! **Invariants.** Row locks are always acquired in the order floor, row of the key, queue entries;
//! the connection repeats a packet that is rolled back by a deadlock nevertheless. Tokens count up
//! in the row of their key, under its lock. A new row begins above the floor, which it reads under
//! a shared lock, while a sweep holds the exclusive one. Only the statements of `handoff` make a
//! waiter the owner, and they pick the first entry. Except for a release or an eviction, no
//! statement moves the end of a lease or of an entry back. Time is the database's, in UTC.
//!
//! **Other modes.** The statements here are those of exclusive claims. A key that is held or waited
//! for in another mode shows it in columns that they read anyway (see `other_modes`): they leave
//! such a key as it is, and the [`KeyState`] says that the packet of `other_modes` has to follow.

use super::super::config::LockMode;
use super::literals::{Literals, WAKE_LOCK_PREFIX, hex, named_lock};
use super::rows::KeyState;
use crate::backend::Claim;
use crate::key::Key;
use crate::token::{FencingToken, TOKENS_PER_GRANT};

/// The database's clock. It is constant within a statement: one that had to wait for a row sees an
/// older time, and so never thinks that a lease has ended too early.
pub(crate) const NOW: &str = "UTC_TIMESTAMP(6)";

/// The id of the connection that executes the statement: a variable that is set when it is opened.
pub(crate) const THIS_CONNECTION: &str = "@tenure_home";

/// One moment that the statements of a packet share, in `@tenure_at`.
pub(super) const PACKET_TIME: &str = "CAST(@tenure_at AS DATETIME(6))";

/// The prefix of the ids of connections that hold a row lock and do nothing else.
pub(crate) const ROW_CONNECTION_PREFIX: &str = "row-";

/// The start of an owner, or of a queue entry's `home`, that stands for another mode than the
/// exclusive one. The id of an owner or of a connection never begins with it.
pub(crate) const OTHER_MODE: char = '~';

/// One claim in so many deletes the ended queue entries of a contended key.
const CLEANUP_EVERY: u64 = 16;

/// The statements of one mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Statements {
    /// The table of locks.
    pub(crate) lease: &'static str,
    /// The table of queue entries.
    pub(crate) waiter: &'static str,
    pub(crate) mode: LockMode,
    /// Whether keys can be held in other modes than the exclusive one.
    pub(crate) other_modes: bool,
}

/// The client that sends a request.
pub(crate) struct Requester<'a> {
    /// Names its wake connection.
    pub(crate) wake_id: &'a str,
    /// The id of the connection that its records end with, as an expression.
    pub(crate) connection_id: &'a str,
}

impl Statements {
    pub(crate) fn new(mode: LockMode, other_modes: bool) -> Statements {
        let (lease, waiter) = match mode {
            LockMode::Lease => ("tenure_lease", "tenure_waiter"),
            LockMode::Session => ("tenure_session", "tenure_session_waiter"),
            LockMode::Row => ("tenure_row", "tenure_row_waiter"),
        };
        Statements { lease, waiter, mode, other_modes }
    }

    /// Whether the row in this table has no holder. A released row stays free when the clock is set
    /// back; a holder that has the server's own lock keeps its row when the clock is set forward.
    pub(crate) fn is_free(&self, table: &str) -> String {
        let expired = expired(table);
        let has_server_lock = match self.mode {
            LockMode::Lease => return format!("({table}.owner='' OR {expired})"),
            LockMode::Session => {
                let name = named_lock(&format!("{table}.k"));
                format!("IS_USED_LOCK({name})<=>{}", live_connection(table))
            }
            LockMode::Row => format!("{table}.home LIKE '{ROW_CONNECTION_PREFIX}%'"),
        };
        let ended = self.has_ended(table);
        format!("({ended} OR ({expired} AND NOT ({has_server_lock})))")
    }

    /// Whether the row in this table has no holder, for a claim that may have released the server's
    /// own lock a moment ago: its record counts until it is released or its connection ends.
    pub(super) fn has_ended(&self, table: &str) -> String {
        match self.mode {
            LockMode::Lease => self.is_free(table),
            LockMode::Session | LockMode::Row => {
                format!("({table}.owner='' OR {} IS NULL)", live_connection(table))
            }
        }
    }

    /// Whether the queue entry in this table has ended.
    pub(crate) fn entry_ended(&self, table: &str) -> String {
        match self.mode {
            LockMode::Lease => expired(table),
            LockMode::Session | LockMode::Row => {
                format!("({} OR {} IS NULL)", expired(table), live_connection(table))
            }
        }
    }

    /// Acquires a key that has a row, is free and has no waiters. One changed row means granted,
    /// and the last insert id is the token.
    pub(crate) fn acquire_free(&self, claim: &Claim, by: &Requester<'_>) -> String {
        let Requester { wake_id, connection_id } = by;
        let lease = self.lease;
        let is_free = self.is_free(lease);
        let Literals { key, owner, until, note } = Literals::of(claim);
        // Not with waiters: a free lock then belongs to the first of them.
        format!(
            "UPDATE {lease} SET owner={owner},token=LAST_INSERT_ID(token+{TOKENS_PER_GRANT}),\
             until={until},\
             since={NOW},note={note},home={connection_id},bell='{wake_id}' \
             WHERE k={key} AND {is_free} AND queued=0"
        )
    }

    /// Acquires a key that may have no row yet, may be held by the claim already, or may be free,
    /// unless another claim waits for it. Ends with the [`KeyState`].
    pub(crate) fn acquire(&self, claim: &Claim, by: &Requester<'_>) -> String {
        let Requester { wake_id, connection_id } = by;
        let Statements { lease, waiter, .. } = self;
        let is_free = self.is_free(lease);
        let holder_is_free = self.is_free("h");
        let entry_ended = self.entry_ended("w");
        let Literals { key, owner, until, note } = Literals::of(claim);
        // Assignments run from left to right: those after `owner` see the new one, and those after
        // `since` know by it whether this statement has granted the lock. A request that was
        // delayed at the server began with an earlier time than a renewal that overtook it: it must
        // not shorten the lease, nor bind the record to another connection than the one that has
        // the row lock.
        format!(
            "INSERT INTO {lease} (k,owner,token,until,since,note,home,bell) \
             SELECT {key},{owner},n+{TOKENS_PER_GRANT},{until},{NOW},{note},{connection_id},\
             '{wake_id}' FROM tenure_floor WHERE id=1 \
             AND NOT EXISTS (SELECT 1 FROM {lease} h WHERE h.k={key} AND h.owner<>{owner} \
             AND NOT {holder_is_free}) \
             AND NOT EXISTS (SELECT 1 FROM {waiter} w WHERE w.k={key} AND w.owner<>{owner} \
             AND NOT {entry_ended}) LOCK IN SHARE MODE \
             ON DUPLICATE KEY UPDATE \
             token={lease}.token+IF({is_free},{TOKENS_PER_GRANT},0),\
             since=IF({is_free},{NOW},{lease}.since),\
             note=IF({is_free} OR {lease}.owner={owner},VALUES(note),{lease}.note),\
             bell=IF({is_free} OR {lease}.owner={owner},VALUES(bell),{lease}.bell),\
             owner=IF({is_free},{owner},{lease}.owner),\
             until=IF({lease}.owner={owner},IF({lease}.since={NOW},VALUES(until),\
             GREATEST({lease}.until,VALUES(until))),{lease}.until),\
             home=IF({lease}.owner={owner} AND {lease}.since={NOW},VALUES(home),\
             {lease}.home);{}",
            KeyState::select(self, &key, &owner, "0")
        )
    }

    /// Acquires the key, or adds or refreshes a queue entry. If the lock is free, it goes to the
    /// first waiter. Ends with the [`KeyState`].
    pub(crate) fn acquire_or_queue(&self, claim: &Claim, by: &Requester<'_>) -> String {
        let Literals { key, owner, .. } = Literals::of(claim);
        let waiter = self.waiter;
        format!(
            "{enter_queue}DELETE FROM {waiter} WHERE k={key} AND {ended};{handoff}{state};COMMIT",
            enter_queue = self.enter_queue(claim, by),
            ended = self.entry_ended(waiter),
            handoff = self.handoff(&key),
            state = KeyState::select(self, &key, &owner, "@tenure_handed"),
        )
    }

    /// Adds or refreshes a queue entry behind others, where a release will pass the lock on. If the
    /// [`KeyState`] at the end says that the lock is free,
    /// [`acquire_or_queue`](Statements::acquire_or_queue) has to follow.
    pub(crate) fn queue_behind(&self, claim: &Claim, by: &Requester<'_>) -> String {
        let Literals { key, owner, .. } = Literals::of(claim);
        let state = KeyState::select(self, &key, &owner, "0");
        let enter_queue = self.enter_queue(claim, by);
        // The entries of claims that were handed the lock stay in the table, ended. Where no other
        // packet deletes them, one claim of a client in so many does.
        let waiter = self.waiter;
        let cleanup = match claim.owner.number() % CLEANUP_EVERY {
            0 => format!("DELETE FROM {waiter} WHERE k={key} AND {};", self.entry_ended(waiter)),
            _ => String::new(),
        };
        format!("{enter_queue}{cleanup}{state};COMMIT")
    }

    /// Begins a transaction, locks the row of the key, which is created if it is not there,
    /// refreshes the lease if the claim holds, and else adds or refreshes its queue entry. `queued`
    /// may be too high for a while; every handoff counts it again.
    fn enter_queue(&self, claim: &Claim, by: &Requester<'_>) -> String {
        let Requester { wake_id, connection_id } = by;
        let Statements { lease, waiter, .. } = self;
        let is_free = self.is_free(lease);
        let Literals { key, owner, until, note } = Literals::of(claim);
        // Whether a key that is held in another mode may be waited for is decided in `other_modes`.
        let held_in_other_mode = if self.other_modes {
            format!(" OR {}", in_other_mode("owner"))
        } else {
            String::new()
        };
        // The first INSERT locks the row of the key until the commit, whether it inserts or not: no
        // other packet can change the holder or the queue of this key in between. A new row has an
        // end long ago, so that it is free.
        format!(
            "START TRANSACTION;\
             INSERT INTO {lease} (k,owner,token,until,since,note,home,bell) \
             SELECT {key},'',n,'1970-01-02','1970-01-02','','','' FROM tenure_floor WHERE id=1 \
             LOCK IN SHARE MODE ON DUPLICATE KEY UPDATE queued=queued+1,\
             bell=IF({lease}.owner={owner} AND NOT {is_free},'{wake_id}',{lease}.bell),\
             until=IF({lease}.owner={owner} AND NOT {is_free},GREATEST({lease}.until,{until}),\
             {lease}.until);\
             INSERT INTO {waiter} (k,owner,until,since,note,home,bell) \
             SELECT k,{owner},{until},{NOW},{note},{connection_id},'{wake_id}' FROM {lease} \
             WHERE k={key} AND NOT ((owner={owner}{held_in_other_mode}) AND NOT {is_free}) \
             ON DUPLICATE KEY UPDATE until=GREATEST({waiter}.until,VALUES(until)),\
             home=VALUES(home),bell=VALUES(bell);"
        )
    }

    /// Ends exactly this grant. The first result set has the row of the grant, if it was there:
    /// `owner`, `bell`, and the connection that can be woken by that name. The last one is the
    /// [`KeyState`].
    pub(crate) fn evict(&self, key: &Key, token: FencingToken) -> String {
        let Statements { lease, waiter, .. } = self;
        let is_free = self.is_free(lease);
        let entry_ended = self.entry_ended(waiter);
        let key = hex(key.as_str());
        // Holders in other modes are evicted one by one, by `other_modes`, or not at all.
        let has_token = format!("NOT {} AND {}", in_other_mode("owner"), range_has(token));
        format!(
            "START TRANSACTION;\
             SELECT owner,bell,IS_USED_LOCK(CONCAT('{WAKE_LOCK_PREFIX}',bell)) AS wake_connection \
             FROM {lease} WHERE k={key} AND {has_token} AND NOT {is_free} FOR UPDATE;\
             UPDATE {lease} SET owner='',until={NOW} \
             WHERE k={key} AND {has_token} AND NOT {is_free};\
             DELETE FROM {waiter} WHERE k={key} AND {entry_ended};\
             {handoff}{state};COMMIT",
            handoff = self.handoff(&key),
            state = KeyState::select(self, &key, "''", "@tenure_handed"),
        )
    }

    /// Binds the record of a claim to another connection: it then ends with that one.
    pub(crate) fn bind_to_connection(&self, claim: &Claim, id: &str) -> String {
        let lease = self.lease;
        let is_free = self.is_free(lease);
        let Literals { key, owner, .. } = Literals::of(claim);
        format!("UPDATE {lease} SET home='{id}' WHERE k={key} AND owner={owner} AND NOT {is_free}")
    }
}

/// Whether the end of a lease or queue entry has passed.
pub(super) fn expired(table: &str) -> String {
    format!("{table}.until<={NOW}")
}

/// Whether this column says that a key is held, or waited for, in another mode than the exclusive
/// one: see `other_modes`. In `mode=lease` only.
pub(super) fn in_other_mode(column: &str) -> String {
    format!("{column} LIKE '{OTHER_MODE}%'")
}

/// Whether the range of tokens of the exclusive grant in a row of locks has this token.
pub(super) fn range_has(token: FencingToken) -> String {
    let token = token.get();
    format!("token<={token} AND {token}<token+{TOKENS_PER_GRANT}")
}

/// The connection that a record or queue entry ends with; NULL if that connection has ended.
fn live_connection(table: &str) -> String {
    format!("IS_USED_LOCK(CONCAT('tenure:',{table}.home))")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::listing::Listing;
    use super::super::other_modes::OtherModes;
    use super::super::renewal::{renew_holders, renew_rows};
    use super::*;
    use crate::backend::{HolderInfo, Owner, Scope};

    #[test]
    fn user_input_never_stands_unencoded_in_a_statement() {
        let key = Key::new("'; DROP TABLE x; -- %").unwrap();
        let mut claim = Claim::new(key, Owner::random(), Duration::from_secs(1));
        claim.holder_info = HolderInfo::new("n'", "h\\", 1, "DROP");
        let by = Requester { wake_id: "b", connection_id: THIS_CONNECTION };
        for mode in [LockMode::Lease, LockMode::Session, LockMode::Row] {
            let statements = Statements::new(mode, mode == LockMode::Lease);
            for sql in [
                statements.acquire_free(&claim, &by),
                statements.acquire(&claim, &by),
                statements.acquire_or_queue(&claim, &by),
                statements.release(&claim),
                statements.hand_off_held(&claim, "b"),
                renew_rows(&statements, &[&claim]),
                OtherModes(&statements).acquire(&claim, &by),
                OtherModes(&statements).release(&claim),
                renew_holders(&statements, &[&claim]),
                Listing::select(&statements, Scope::Prefix("DROP")),
            ] {
                assert!(!sql.contains("DROP"), "{sql}");
            }
        }
    }
}
