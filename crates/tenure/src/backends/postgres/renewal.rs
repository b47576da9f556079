//! Renewals of `mode=lease`: many in one statement, and none that waits for another.
//!
//! Two things could hold a renewal up that can be carried out: the row of another one, which a
//! foreign transaction has locked, and requests before it on the same connection that wait for
//! such a row. So locked rows are left out at first and tried one by one afterwards, and a renewal
//! that gets no response is sent over a connection of its own as well: it never shortens a lease,
//! so that twice does no harm.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::fault;
use super::lanes::Lanes;
use super::lease::{get, span};
use super::link::{Value, values};
use super::sql;
use crate::claim::{Claim, LostReason};
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

pub(super) async fn renew(lanes: &Arc<Lanes>, claims: &[Claim]) -> Vec<Result<Duration>> {
    let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
    let patience = shortest / 16;
    let states = match renew_free(lanes, claims, patience).await {
        Ok(states) => states,
        Err(error) => return vec![Err(error); claims.len()],
    };
    let locked = states.iter().filter(|state| **state == State::Locked).count();
    let share = patience / u32::try_from(locked.max(1)).unwrap_or(u32::MAX);
    join_all(claims.iter().zip(states).map(async |(claim, state)| match state {
        State::Renewed => Ok(claim.ttl),
        State::Locked => renew_locked(lanes, claim, patience, share).await,
        State::Others => Err(Error::gone(LostReason::TakenOver)),
        State::Free => Err(Error::new(ErrorKind::Lost, "the lock is not held")),
    }))
    .await
}

/// What became of a claim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Renewed,
    /// It holds the lock, and another transaction has the row locked.
    Locked,
    /// Another grant holds the lock.
    Others,
    Free,
}

/// Renews everything whose row is not locked; what became of each, in order.
async fn renew_free(
    lanes: &Arc<Lanes>,
    claims: &[Claim],
    patience: Duration,
) -> Result<Vec<State>> {
    let rows = lanes.ask_promptly(&sql::RENEW, || columns(claims), patience).await?;
    let state = |row| {
        Ok(match (get(row, 0)?, get(row, 1)?, get(row, 2)?) {
            (true, _, _) => State::Renewed,
            (false, true, _) => State::Locked,
            (false, false, true) => State::Others,
            (false, false, false) => State::Free,
        })
    };
    let states: Vec<State> = rows.iter().map(state).collect::<Result<_>>()?;
    if states.len() == claims.len() { Ok(states) } else { Err(fault::odd("renewals")) }
}

fn columns(claims: &[Claim]) -> Vec<Value> {
    let keys: Vec<_> = claims.iter().map(|claim| claim.key.as_str().as_bytes().to_vec()).collect();
    let owners: Vec<_> = claims.iter().map(|claim| claim.owner.to_string()).collect();
    let ttls: Vec<_> = claims.iter().map(|claim| span(claim.ttl)).collect();
    let tokens: Vec<_> = claims.iter().map(number).collect();
    values![keys, owners, ttls, tokens]
}

fn number(claim: &Claim) -> Option<i64> {
    claim.token.map(FencingToken::as_i64)
}

/// Waits in the row's own queue, where busy waiters cannot overtake for ever, for no longer than
/// `share`; for no longer than `patience` altogether.
async fn renew_locked(
    lanes: &Arc<Lanes>,
    claim: &Claim,
    patience: Duration,
    share: Duration,
) -> Result<Duration> {
    let (key, owner) = (claim.key.as_str().as_bytes().to_vec(), claim.owner.to_string());
    let wait = format!("{}ms", share.as_millis().max(1));
    let values = values![key, owner, span(claim.ttl), number(claim), wait];
    match tokio::time::timeout(patience, lanes.ask(&sql::RENEW_LOCKED, values)).await {
        Ok(rows) if rows.as_ref().is_ok_and(Vec::is_empty) => {
            Err(Error::new(ErrorKind::Lost, "the lock is not held"))
        }
        Ok(rows) => rows.map(|_| claim.ttl),
        Err(_) => {
            let message = format!("another transaction has the row of `{}` locked", claim.key);
            Err(Error::new(ErrorKind::Unavailable, message))
        }
    }
}
