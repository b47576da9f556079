//! Reading rows: how things are with a key, who holds what, who waits.

use std::time::Duration;

use mysql_async::Row;
use mysql_async::prelude::FromValue;

use super::fault;
use crate::backend::{Claim, Note};
use crate::claim::{Busy, Holder, Holding, Waiter};
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

/// How things are with a key, as the database said last.
#[derive(Debug)]
pub(super) struct State {
    pub(super) owner: String,
    /// The token of the owner, or of the last one.
    pub(super) token: u64,
    left: i64,
    held_for: i64,
    /// Whether nobody holds.
    pub(super) over: bool,
    note: String,
    /// How many wait; not 0 if anybody does.
    pub(super) queued: u64,
    /// The bell of the owner.
    pub(super) bell: String,
    /// Whether it was us who gave the lock to this owner just now.
    pub(super) handed: bool,
    /// The connection of that bell, if there is one.
    pub(super) wake: Option<u64>,
    ahead: u64,
}

impl State {
    pub(super) fn read(row: &Row) -> Result<State> {
        Ok(State {
            owner: text(row, 0)?,
            token: value(row, 1)?,
            left: value(row, 2)?,
            held_for: value(row, 3)?,
            over: value(row, 4)?,
            note: text(row, 5)?,
            queued: value(row, 6)?,
            bell: text(row, 7)?,
            handed: value(row, 8)?,
            wake: value(row, 9)?,
            ahead: value(row, 10)?,
        })
    }

    /// Whether this claim holds; then, with which token.
    pub(super) fn granted(&self, claim: &Claim) -> Option<FencingToken> {
        let mine = !self.over && self.owner == claim.owner.to_string();
        mine.then(|| FencingToken::new(self.token)).flatten()
    }

    pub(super) fn busy(&self, claim: &Claim) -> Busy {
        let mut busy = Busy::new(claim.key.clone());
        if !self.over && !self.owner.is_empty() {
            let mut holder = Holder::new(&Note::decode(&self.note));
            holder.token = FencingToken::new(self.token);
            holder.held_for = Some(micros(self.held_for));
            holder.ttl_left = Some(micros(self.left));
            busy.holder = Some(Box::new(holder));
            busy.retry_after = Some(look_in(self.left));
        }
        busy.ahead = claim.waits.then(|| u32::try_from(self.ahead).unwrap_or(u32::MAX));
        busy
    }
}

/// What a look at a key that is waited for or held showed.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) key: Vec<u8>,
    pub(super) owner: String,
    pub(super) token: Option<FencingToken>,
    /// When to look again.
    pub(super) look_in: Duration,
    pub(super) over: bool,
    pub(super) queued: u64,
    /// For how long the owner has had the turn.
    pub(super) held_for: Duration,
}

impl Seen {
    pub(super) fn read(row: &Row) -> Result<Seen> {
        Ok(Seen {
            key: value(row, 0)?,
            owner: text(row, 1)?,
            token: FencingToken::new(value(row, 2)?),
            look_in: look_in(value(row, 3)?),
            over: value(row, 4)?,
            queued: value(row, 5)?,
            held_for: micros(value(row, 6)?),
        })
    }
}

/// Holders and waiters of a listing, both in the order of the keys.
pub(super) fn holdings(holders: &[Row], waiters: &[Row]) -> Result<Vec<Holding>> {
    let mut holdings = Vec::with_capacity(holders.len());
    for row in holders {
        // Whoever wrote another key there is not tenure.
        let Ok(key) = Key::new(text(row, 0)?) else { continue };
        let mut holder = Holder::new(&Note::decode(&text(row, 4)?));
        holder.token = FencingToken::new(value(row, 1)?);
        holder.ttl_left = Some(micros(value(row, 2)?));
        holder.held_for = Some(micros(value(row, 3)?));
        holdings.push(Holding::new(key, holder));
    }
    for row in waiters {
        let key = text(row, 0)?;
        let found = holdings.binary_search_by(|holding| holding.key.as_str().cmp(&key));
        let Ok(found) = found else { continue };
        let mut waiter = Waiter::new(&Note::decode(&text(row, 2)?));
        waiter.waiting_for = Some(micros(value(row, 1)?));
        holdings[found].waiters.push(waiter);
    }
    Ok(holdings)
}

pub(super) fn value<T: FromValue>(row: &Row, column: usize) -> Result<T> {
    let value = row.get_opt(column).and_then(std::result::Result::ok);
    value.ok_or_else(|| fault::strange(&format!("something else in column {column}")))
}

pub(super) fn text(row: &Row, column: usize) -> Result<String> {
    let bytes: Vec<u8> = value(row, column)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Durations of the server; one that is over is zero.
fn micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// When a lock can come free without a ring: at the end of its lease; where that has passed and the
/// server's own lock is still there, with the end of a connection.
fn look_in(left: i64) -> Duration {
    if left > 0 { micros(left) + ROUNDING } else { LATE }
}

/// The server compares microseconds; the first look after the end should find it over.
const ROUNDING: Duration = Duration::from_millis(1);
/// The pause between looks at a connection that has to end.
const LATE: Duration = Duration::from_millis(100);
