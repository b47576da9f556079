//! What the packets of `other_modes` end with, each statement beside the type that its rows are
//! read into.

use mysql_async::Row;

use super::literals::WAKE_LOCK_PREFIX;
use super::other_modes::{BASE, HOLDERS, KIND, whole};
use super::rows::{holder, recheck_in, text, value};
use super::statements::{PACKET_TIME, Statements, in_other_mode};
use crate::backend::{Busy, Claim, Grant, Holder, Mode};
use crate::error::{Error, Result};
use crate::token::{FencingToken, TOKENS_PER_GRANT};

/// A client that the packet has granted the key.
pub(crate) struct WokenClient {
    pub(crate) wake_id: String,
    /// The server's number of its wake connection.
    pub(crate) wake_connection: Option<u64>,
}

impl WokenClient {
    /// Every client once, except for the one of this owner, an expression.
    pub(super) fn select(statements: &Statements, key: &str, owner: &str) -> String {
        let lease = statements.lease;
        let granted = format!("k={key} AND token>={BASE} AND owner<>{owner}");
        let alone = format!("owner<>'' AND NOT {}", in_other_mode("owner"));
        format!(
            "SELECT bell,IS_USED_LOCK(CONCAT('{WAKE_LOCK_PREFIX}',bell)) AS wake_connection \
             FROM (SELECT bell FROM tenure_holder WHERE {granted} \
             UNION SELECT bell FROM {lease} WHERE {granted} AND {alone}) g"
        )
    }

    pub(crate) fn read(row: &Row) -> Result<WokenClient> {
        let wake_connection = value(row, "wake_connection")?;
        Ok(WokenClient { wake_id: text(row, "bell")?, wake_connection })
    }
}

/// What a claim has, and what it sees of a key.
pub(crate) struct ModeOutcome {
    /// The grant of the claim.
    own: Option<(FencingToken, u32)>,
    /// What the key is in use as.
    kind: Option<Mode>,
    /// The oldest holder.
    oldest: Option<Holder>,
    holders: u32,
    /// The highest token that was granted.
    pub(crate) newest_token: u64,
    /// How many claims wait.
    pub(crate) queued: u64,
    /// Whether the key is held or waited for in another mode than the exclusive one.
    pub(crate) in_other_mode: bool,
    /// The first end that may let a waiter in: of a holder's lease, or of the first queue entry.
    next_end: Option<i64>,
    /// How many queue entries are in front of that of the claim.
    pub(crate) ahead: u32,
}

impl ModeOutcome {
    /// Two result sets: whom to wake, and the outcome.
    pub(super) fn select(statements: &Statements, key: &str, owner: &str) -> String {
        let Statements { lease, waiter, .. } = statements;
        let whole = whole();
        let woken = WokenClient::select(statements, key, owner);
        let held_together = in_other_mode("l.owner");
        let is_other_entry = in_other_mode("x.home");
        format!(
            "{woken};SELECT l.token AS newest,l.queued AS queued,CONCAT({KIND}) AS kind,\
             COALESCE(me.token,IF(l.owner={owner},l.token,NULL)) AS own_token,\
             COALESCE(me.tokens,{TOKENS_PER_GRANT}) AS own_tokens,\
             IF(l.owner='',0,IF({held_together},{HOLDERS},1)) AS holders,\
             COALESCE(o.token,l.token) AS token,COALESCE(o.note,l.note) AS note,\
             COALESCE(o.weight,{whole}) AS weight,COALESCE(o.lim,{whole}) AS lim,\
             TIMESTAMPDIFF(MICROSECOND,{PACKET_TIME},COALESCE(o.until,l.until)) AS ttl_left,\
             TIMESTAMPDIFF(MICROSECOND,COALESCE(o.since,l.since),{PACKET_TIME}) AS held_for,\
             (SELECT TIMESTAMPDIFF(MICROSECOND,{PACKET_TIME},MIN(u.until)) \
             FROM (SELECT until FROM tenure_holder WHERE k={key} \
             UNION ALL SELECT until FROM {lease} WHERE k={key} AND owner<>'' \
             UNION ALL (SELECT until FROM {waiter} WHERE k={key} ORDER BY seat LIMIT 1)) u) \
             AS next_end,\
             ({held_together} OR EXISTS (SELECT 1 FROM {waiter} x WHERE x.k={key} \
             AND {is_other_entry})) AS in_other_mode,\
             (SELECT COUNT(*) FROM {waiter} a JOIN {waiter} m ON m.k=a.k AND a.seat<m.seat \
             WHERE a.k={key} AND m.owner={owner}) AS ahead \
             FROM {lease} l LEFT JOIN tenure_holder me ON me.k=l.k AND me.owner={owner} \
             LEFT JOIN tenure_holder o ON o.k=l.k AND o.token=(SELECT MIN(f.token) \
             FROM tenure_holder f WHERE f.k={key}) WHERE l.k={key}"
        )
    }

    pub(crate) fn read(row: &Row) -> Result<ModeOutcome> {
        let own_token = value::<Option<u64>>(row, "own_token")?.and_then(FencingToken::new);
        let own_tokens = value(row, "own_tokens")?;
        let holders = value(row, "holders")?;
        let kind = match value::<Option<Vec<u8>>>(row, "kind")? {
            Some(kind) if kind == b"permits" => Some(Mode::permits(1, 1)?),
            Some(_) => Some(Mode::Exclusive),
            None => None,
        };
        Ok(ModeOutcome {
            own: own_token.map(|token| (token, own_tokens)),
            kind,
            oldest: (holders > 0).then(|| holder(row)).transpose()?,
            holders,
            newest_token: value(row, "newest")?,
            queued: value(row, "queued")?,
            in_other_mode: value(row, "in_other_mode")?,
            next_end: value(row, "next_end")?,
            ahead: value(row, "ahead")?,
        })
    }

    /// The grant of the claim, if it holds the key.
    pub(crate) fn granted(&self, claim: &Claim) -> Option<Grant> {
        let (token, tokens) = self.own?;
        Some(Grant { tokens, ..Grant::new(token, claim.ttl) })
    }

    /// A key is a lock or a semaphore, for as long as it has holders or waiters.
    ///
    /// # Errors
    ///
    /// `Invalid` if it is the other one.
    pub(crate) fn check_kind(&self, claim: &Claim) -> Result<()> {
        match self.kind {
            Some(used) if used.is_lock() != claim.mode.is_lock() => {
                Err(Error::other_kind(&claim.key, used))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn busy(self, claim: &Claim) -> Busy {
        let mut busy = Busy::new(claim.key.clone());
        busy.holder = self.oldest.map(Box::new);
        busy.holders = self.holders;
        busy.retry_after = self.next_end.map(recheck_in);
        busy.ahead = claim.waits.then_some(self.ahead);
        busy
    }
}

/// How a holder with this weight and limit holds.
pub(super) fn mode_of(weight: u32, limit: u32) -> Mode {
    match Mode::permits(weight, limit) {
        Ok(permits) => permits,
        Err(_) if weight == whole() => Mode::Exclusive,
        Err(_) => Mode::Shared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_from_its_weight_and_limit() {
        let permits = Mode::permits(2, 5).unwrap();
        for mode in [Mode::Exclusive, Mode::Shared, permits, Mode::permits(1, 1 << 30).unwrap()] {
            assert_eq!(mode_of(mode.weight(), mode.limit()), mode);
        }
    }
}
