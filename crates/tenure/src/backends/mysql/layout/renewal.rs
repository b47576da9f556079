//! The statements that extend the leases of many claims in one packet.
//!
//! A row that another transaction has locked is skipped: waiting for it would fail the renewal of
//! all others. An UPDATE cannot skip rows, not even those that a subquery locks. An INSERT can,
//! because it has read and locked all rows of its SELECT before it writes. As every row exists,
//! nothing is inserted.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::literals::{Literals, micros};
use super::statements::{NOW, PACKET_TIME, Statements, in_other_mode};
use crate::backend::Claim;

/// Claims as the parts of a statement.
struct Claims {
    /// In order, so that two renewals of one client cannot wait for each other.
    keys: String,
    owners: String,
    /// `WHEN` each owner `THEN` the end that it requests.
    until: String,
    /// `WHEN` each owner `THEN` the token of its grant.
    tokens: String,
    /// `WHEN` each key `THEN` the latest end that is requested for it.
    until_by_key: String,
}

impl Claims {
    fn of(claims: &[&Claim]) -> Claims {
        let (mut until, mut tokens) = (String::new(), String::new());
        let mut by_key: BTreeMap<String, Duration> = BTreeMap::new();
        let mut owners = Vec::new();
        for claim in claims {
            let Literals { key, owner, .. } = Literals::of(claim);
            // Writing to a string cannot fail.
            let _ignored = write!(until, " WHEN {owner} THEN {}", end(claim.ttl));
            if let Some(token) = claim.token {
                let _ignored = write!(tokens, " WHEN {owner} THEN {token}");
            }
            let longest = by_key.entry(key).or_default();
            *longest = claim.ttl.max(*longest);
            owners.push(owner);
        }
        let mut until_by_key = String::new();
        for (key, ttl) in &by_key {
            let _ignored = write!(until_by_key, " WHEN {key} THEN {}", end(*ttl));
        }
        let keys: Vec<_> = by_key.into_keys().collect();
        let (keys, owners) = (keys.join(","), owners.join(","));
        Claims { keys, owners, until, tokens, until_by_key }
    }

    /// The condition that a grant in this table is that of the claim. An evicted grant stays lost,
    /// even if its owner was granted the lock again afterwards.
    fn has_token(&self, table: &str) -> String {
        match &*self.tokens {
            "" => String::new(),
            tokens => {
                format!(" AND {table}.token=CASE {table}.owner{tokens} ELSE {table}.token END")
            }
        }
    }

    /// The end that the owner in this table requests.
    fn end_of(&self, table: &str) -> String {
        format!("CASE {table}.owner{} ELSE {table}.until END", self.until)
    }
}

/// The end of a lease that begins with the packet.
fn end(ttl: Duration) -> String {
    format!("{PACKET_TIME}+INTERVAL {} MICROSECOND", micros(ttl))
}

/// Extends the leases of these claims. The result set has one row for each that is held:
/// `owner`, and `is_extended`, whether its lease is as long as requested.
pub(crate) fn renew_rows(statements: &Statements, claims: &[&Claim]) -> String {
    let lease = statements.lease;
    let claims = Claims::of(claims);
    let Claims { keys, owners, .. } = &claims;
    let end = claims.end_of(lease);
    format!(
        "SET @tenure_at={NOW};\
         INSERT INTO {lease} (k,owner,token,until,since,note,home,bell) \
         SELECT l.k,'',0,'1970-01-02','1970-01-02','','','' FROM {lease} l \
         WHERE l.k IN ({keys}) AND l.owner IN ({owners}){l_has_token} AND NOT {l_is_free} \
         FOR UPDATE SKIP LOCKED \
         ON DUPLICATE KEY UPDATE until=GREATEST({lease}.until,{end});\
         SELECT owner,until>={end} AS is_extended FROM {lease} \
         WHERE k IN ({keys}) AND owner IN ({owners}){has_token} AND NOT {is_free}",
        l_has_token = claims.has_token("l"),
        l_is_free = statements.is_free("l"),
        has_token = claims.has_token(lease),
        is_free = statements.is_free(lease),
    )
}

/// Extends the leases of claims that hold their keys in other modes. First the rows of the keys are
/// extended, then those holders whose row ends no earlier than they request: a holder never ends
/// after the row of its key, also if that row was locked by another transaction and came free
/// in between.
pub(crate) fn renew_holders(statements: &Statements, claims: &[&Claim]) -> String {
    let lease = statements.lease;
    let claims = Claims::of(claims);
    let Claims { keys, owners, until_by_key, .. } = &claims;
    let held = format!(
        "FROM {lease} l STRAIGHT_JOIN tenure_holder h ON h.k=l.k AND h.owner IN ({owners}) \
         WHERE l.k IN ({keys}) AND {together} AND NOT {is_free} AND h.until>{NOW}{has_token}",
        together = in_other_mode("l.owner"),
        is_free = statements.is_free("l"),
        has_token = claims.has_token("h"),
    );
    let (h_end, end) = (claims.end_of("h"), claims.end_of("tenure_holder"));
    format!(
        "SET @tenure_at={NOW};START TRANSACTION;\
         INSERT INTO {lease} (k,owner,token,until,since,note,home,bell) \
         SELECT l.k,'',0,'1970-01-02','1970-01-02','','','' {held} FOR UPDATE SKIP LOCKED \
         ON DUPLICATE KEY UPDATE until=GREATEST({lease}.until,\
         CASE {lease}.k{until_by_key} ELSE {lease}.until END);\
         INSERT INTO tenure_holder (k,owner,token,tokens,weight,lim,until,since,note,bell) \
         SELECT h.k,h.owner,0,0,0,0,'1970-01-02','1970-01-02','','' {held} \
         AND l.until>={h_end} FOR UPDATE SKIP LOCKED \
         ON DUPLICATE KEY UPDATE until=GREATEST(tenure_holder.until,{end});COMMIT;\
         SELECT h.owner AS owner,h.until>={h_end} AS is_extended {held}"
    )
}
