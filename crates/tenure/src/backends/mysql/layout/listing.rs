//! Holders and waiters as operators see them: the statement, and what its rows are read into.

use mysql_async::Row;

use super::super::connection::Response;
use super::literals::range;
use super::other_modes::{weight_and_limit, whole};
use super::outcome::mode_of;
use super::rows::{from_micros, holder, text, value};
use super::statements::{NOW, Statements, in_other_mode};
use crate::backend::{HolderInfo, Holding, Scope, Waiter};
use crate::error::{Error, Result};
use crate::key::Key;

/// Holders and waiters, for operators.
pub(crate) struct Listing;

impl Listing {
    /// The holders in the order of their keys, and of one key the oldest first; then the waiters by
    /// key and rank.
    pub(crate) fn select(statements: &Statements, scope: Scope<'_>) -> String {
        let Statements { lease, waiter, .. } = statements;
        let is_free = statements.is_free(lease);
        let entry_ended = statements.entry_ended(waiter);
        let range = range(scope);
        let whole = whole();
        let (mut holders, mut weight, mut limit) =
            (String::new(), whole.to_string(), whole.to_string());
        if statements.other_modes {
            let alone = in_other_mode("owner");
            holders = format!(" AND NOT {alone}{}", Self::holders(statements, &range));
            (weight, limit) = weight_and_limit("home");
        }
        format!(
            "SELECT k,token,TIMESTAMPDIFF(MICROSECOND,{NOW},until) AS ttl_left,\
             TIMESTAMPDIFF(MICROSECOND,since,{NOW}) AS held_for,note,{weight} AS weight,\
             {limit} AS lim FROM {lease} \
             WHERE {range} AND owner<>'' AND NOT {is_free}{holders} ORDER BY k,token;\
             SELECT k,TIMESTAMPDIFF(MICROSECOND,since,{NOW}) AS waiting_for,note,\
             {weight} AS weight,{limit} AS lim FROM {waiter} \
             WHERE {range} AND NOT {entry_ended} ORDER BY k,seat"
        )
    }

    /// Those that hold a key together, in the same statement, so that one moment is shown.
    fn holders(statements: &Statements, range: &str) -> String {
        let lease = statements.lease;
        let is_free = statements.is_free("l");
        let together = in_other_mode("l.owner");
        format!(
            " UNION ALL SELECT h.k,h.token,TIMESTAMPDIFF(MICROSECOND,{NOW},h.until),\
             TIMESTAMPDIFF(MICROSECOND,h.since,{NOW}),h.note,h.weight,h.lim \
             FROM (SELECT * FROM tenure_holder WHERE {range} AND until>{NOW}) h \
             JOIN {lease} l ON l.k=h.k WHERE {together} AND NOT {is_free}"
        )
    }

    pub(crate) fn read(response: &Response) -> Result<Vec<Holding>> {
        let [holders, waiters] = &*response.result_sets else {
            return Err(Error::unexpected_response("mysql", "a listing without two result sets"));
        };
        let mut holdings: Vec<Holding> = Vec::with_capacity(holders.len());
        for row in holders {
            // A foreign client wrote a row whose key is not valid for tenure.
            let Ok(key) = Key::new(text(row, "k")?) else { continue };
            let holder = holder(row)?;
            match holdings.last_mut().filter(|last| last.key == key) {
                Some(last) => last.holders.push(holder),
                None => holdings.push(Holding::new(key, holder)),
            }
        }
        for row in waiters {
            let key = text(row, "k")?;
            let found = holdings.binary_search_by(|holding| holding.key.as_str().cmp(&key));
            let Ok(found) = found else { continue };
            holdings[found].waiters.push(waiter(row)?);
        }
        Ok(holdings)
    }
}

fn waiter(row: &Row) -> Result<Waiter> {
    let mut waiter = Waiter::new(&HolderInfo::decode(&text(row, "note")?));
    waiter.mode = mode_of(value(row, "weight")?, value(row, "lim")?);
    waiter.waiting_for = Some(from_micros(value(row, "waiting_for")?));
    Ok(waiter)
}
