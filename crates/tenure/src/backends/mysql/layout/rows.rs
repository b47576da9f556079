//! The statements that read the tables, each beside the type that its rows are read into. Columns
//! are read by the names that the statement gives them.

use std::time::Duration;

use mysql_async::Row;
use mysql_async::prelude::FromValue;

use super::handoff::LONG_AGO;
use super::literals::{WAKE_LOCK_PREFIX, hex};
use super::outcome::mode_of;
use super::statements::{NOW, Statements, expired, in_other_mode};
use crate::backend::{Busy, Claim, Holder, HolderInfo};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// The server compares microseconds: a recheck this much after the end of a lease finds it expired.
const ROUNDING: Duration = Duration::from_millis(1);
/// The pause between rechecks of a lock whose lease has expired and whose connection has to end.
const EXPIRED_RECHECK: Duration = Duration::from_millis(100);

/// The row of one key after a request about it, with what a waiter of the key wants to know.
#[derive(Debug)]
pub(crate) struct KeyState {
    pub(crate) owner: String,
    /// The token of the owner, or of the last one.
    pub(crate) token: u64,
    ttl_left: i64,
    held_for: i64,
    /// Whether the lock has no holder.
    pub(crate) is_free: bool,
    holder_info: String,
    /// How many claims wait. May be too high; 0 only if none waits.
    pub(crate) queued: u64,
    /// The wake id of the owner's client.
    pub(crate) wake_id: String,
    /// Whether this request made the owner the owner, by a handoff.
    pub(crate) handed_off: bool,
    /// After a handoff: the server's number of the wake connection of the owner's client.
    pub(crate) wake_connection: Option<u64>,
    /// Whether the key is held, or its first waiter wants it, in another mode than the exclusive
    /// one: then the packet has left it as it was.
    pub(crate) in_other_mode: bool,
    /// How many queue entries are in front of that of the claim.
    ahead: u64,
}

impl KeyState {
    /// Reads the row of a key. `key`, `owner` and `handed` are expressions; `handed` is above 0 if
    /// the packet has handed the lock off.
    pub(crate) fn select(statements: &Statements, key: &str, owner: &str, handed: &str) -> String {
        let Statements { lease, waiter, .. } = statements;
        let is_free = statements.is_free("l");
        let ended = expired("a");
        let in_other_mode = if statements.other_modes {
            format!(
                "COALESCE(IF({is_free},(SELECT {} FROM {waiter} f WHERE f.k={key} \
                 ORDER BY f.seat LIMIT 1),{}),0)",
                in_other_mode("f.home"),
                in_other_mode("l.owner")
            )
        } else {
            "0".to_owned()
        };
        format!(
            "SELECT l.owner AS owner,l.token AS token,\
             TIMESTAMPDIFF(MICROSECOND,{NOW},l.until) AS ttl_left,\
             TIMESTAMPDIFF(MICROSECOND,l.since,{NOW}) AS held_for,{is_free} AS is_free,\
             l.note AS note,l.queued AS queued,l.bell AS bell,{in_other_mode} AS in_other_mode,\
             {handed}>0 AS handed_off,\
             IF({handed}>0,IS_USED_LOCK(CONCAT('{WAKE_LOCK_PREFIX}',l.bell)),NULL) \
             AS wake_connection,\
             (SELECT COUNT(*) FROM {waiter} a JOIN {waiter} me ON me.k=a.k AND a.seat<me.seat \
             WHERE a.k={key} AND NOT {ended} AND me.owner={owner}) AS ahead \
             FROM {lease} l WHERE l.k={key}"
        )
    }

    pub(crate) fn read(row: &Row) -> Result<KeyState> {
        Ok(KeyState {
            owner: text(row, "owner")?,
            token: value(row, "token")?,
            ttl_left: value(row, "ttl_left")?,
            held_for: value(row, "held_for")?,
            is_free: value(row, "is_free")?,
            holder_info: text(row, "note")?,
            queued: value(row, "queued")?,
            wake_id: text(row, "bell")?,
            handed_off: value(row, "handed_off")?,
            wake_connection: value(row, "wake_connection")?,
            in_other_mode: value(row, "in_other_mode")?,
            ahead: value(row, "ahead")?,
        })
    }

    /// The token of the claim, if it holds the lock.
    pub(crate) fn granted(&self, claim: &Claim) -> Option<FencingToken> {
        let holds = !self.is_free && self.owner == claim.owner.to_string();
        holds.then(|| FencingToken::new(self.token)).flatten()
    }

    pub(crate) fn busy(&self, claim: &Claim) -> Busy {
        let mut busy = Busy::new(claim.key.clone());
        if !self.is_free && !self.owner.is_empty() {
            let mut holder = Holder::new(&HolderInfo::decode(&self.holder_info));
            holder.token = FencingToken::new(self.token);
            holder.held_for = Some(from_micros(self.held_for));
            holder.ttl_left = Some(from_micros(self.ttl_left));
            busy.holder = Some(Box::new(holder));
            busy.holders = 1;
            busy.retry_after = Some(recheck_in(self.ttl_left));
        }
        busy.ahead = claim.waits.then(|| u32::try_from(self.ahead).unwrap_or(u32::MAX));
        busy
    }
}

/// The row of a key that a poll or a check read: the key is waited for, or held.
#[derive(Debug)]
pub(crate) struct LockSnapshot {
    pub(crate) key: Vec<u8>,
    pub(crate) owner: String,
    pub(crate) token: Option<FencingToken>,
    /// When the lock can come free without a wake-up: read it again then.
    pub(crate) recheck_in: Duration,
    /// Whether the lock has no holder.
    pub(crate) is_free: bool,
    pub(crate) queued: u64,
    /// For how long the owner has had the lock, or the turn.
    pub(crate) held_for: Duration,
}

impl LockSnapshot {
    pub(crate) fn select<'a>(
        statements: &Statements,
        keys: impl IntoIterator<Item = &'a Key>,
    ) -> String {
        let lease = statements.lease;
        let is_free = statements.is_free(lease);
        let keys: Vec<_> = keys.into_iter().map(|key| hex(key.as_str())).collect();
        format!(
            "SELECT k,owner,token,TIMESTAMPDIFF(MICROSECOND,{NOW},until) AS ttl_left,\
             {is_free} AS is_free,queued,TIMESTAMPDIFF(MICROSECOND,since,{NOW}) AS held_for \
             FROM {lease} WHERE k IN ({})",
            keys.join(",")
        )
    }

    /// The rows of keys that are waited for in other modes: such a lock also counts as free if a
    /// holder or a queue entry has ended, because that may let the first waiter in. Then a result
    /// set of the [`SharedGrant`]s of these owners.
    pub(crate) fn select_in_modes<'a>(
        statements: &Statements,
        keys: impl IntoIterator<Item = &'a Key>,
        owners: &[String],
    ) -> String {
        let Statements { lease, waiter, .. } = statements;
        let is_free = statements.is_free("l");
        let keys: Vec<_> = keys.into_iter().map(|key| hex(key.as_str())).collect();
        let keys = keys.join(",");
        let owners: Vec<_> = owners.iter().map(|owner| format!("'{owner}'")).collect();
        let owners = owners.join(",");
        let together = in_other_mode("l.owner");
        // The entry of a claim that was handed the lock has an end long ago, and holds up nothing.
        format!(
            "SELECT l.k AS k,l.owner AS owner,l.token AS token,\
             TIMESTAMPDIFF(MICROSECOND,{NOW},LEAST(l.until,COALESCE((SELECT MIN(h.until) \
             FROM tenure_holder h WHERE h.k=l.k AND {together}),l.until),\
             COALESCE((SELECT w.until FROM {waiter} w WHERE w.k=l.k AND w.until>{NOW} \
             ORDER BY w.seat LIMIT 1),l.until))) AS ttl_left,\
             ({is_free} OR EXISTS (SELECT 1 FROM tenure_holder h WHERE h.k=l.k \
             AND h.until<={NOW} AND {together}) OR EXISTS (SELECT 1 FROM {waiter} w \
             WHERE w.k=l.k AND w.until<={NOW} AND w.until>{LONG_AGO})) AS is_free,\
             l.queued AS queued,TIMESTAMPDIFF(MICROSECOND,l.since,{NOW}) AS held_for \
             FROM {lease} l WHERE l.k IN ({keys});\
             SELECT h.owner AS owner,h.token AS token,h.tokens AS tokens \
             FROM {lease} l JOIN tenure_holder h ON h.k=l.k WHERE l.k IN ({keys}) \
             AND {together} AND NOT {is_free} AND h.owner IN ({owners}) AND h.until>{NOW}"
        )
    }

    pub(crate) fn read(row: &Row) -> Result<LockSnapshot> {
        Ok(LockSnapshot {
            key: value(row, "k")?,
            owner: text(row, "owner")?,
            token: FencingToken::new(value(row, "token")?),
            recheck_in: recheck_in(value(row, "ttl_left")?),
            is_free: value(row, "is_free")?,
            queued: value(row, "queued")?,
            held_for: from_micros(value(row, "held_for")?),
        })
    }

    /// Whether this claim has the lock, or the turn.
    pub(crate) fn is_held_by(&self, claim: &Claim) -> bool {
        !self.is_free && self.owner == claim.owner.to_string()
    }
}

/// A grant of a waiter that holds the key beside others.
#[derive(Debug)]
pub(crate) struct SharedGrant {
    pub(crate) owner: String,
    pub(crate) token: Option<FencingToken>,
    pub(crate) tokens: u32,
}

impl SharedGrant {
    pub(crate) fn read(row: &Row) -> Result<SharedGrant> {
        Ok(SharedGrant {
            owner: text(row, "owner")?,
            token: FencingToken::new(value(row, "token")?),
            tokens: value(row, "tokens")?,
        })
    }
}

/// A column of a row.
pub(crate) fn value<T: FromValue>(row: &Row, column: &str) -> Result<T> {
    let value = row.get_opt(column).and_then(std::result::Result::ok);
    let unexpected = || format!("an unexpected value in column `{column}`");
    value.ok_or_else(|| Error::unexpected_response("mysql", unexpected()))
}

/// A column of a row, as text.
pub(crate) fn text(row: &Row, column: &str) -> Result<String> {
    let bytes: Vec<u8> = value(row, column)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A holder in the columns `token`, `note`, `ttl_left`, `held_for`, `weight` and `lim`.
pub(super) fn holder(row: &Row) -> Result<Holder> {
    let mut holder = Holder::new(&HolderInfo::decode(&text(row, "note")?));
    holder.mode = mode_of(value(row, "weight")?, value(row, "lim")?);
    holder.token = FencingToken::new(value(row, "token")?);
    holder.ttl_left = Some(from_micros(value(row, "ttl_left")?));
    holder.held_for = Some(from_micros(value(row, "held_for")?));
    Ok(holder)
}

/// A duration that the server computed; zero if it has passed.
pub(super) fn from_micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// When a lock can come free without a wake-up: at the end of its lease. If that has passed and the
/// holder still has the server's own lock, at the end of its connection, which cannot be foreseen.
pub(super) fn recheck_in(ttl_left: i64) -> Duration {
    if ttl_left > 0 { from_micros(ttl_left) + ROUNDING } else { EXPIRED_RECHECK }
}
