//! `mode=lease`: the verbs, each one statement.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::bells::Call;
use super::fault;
use super::lanes::{LOOK, Lanes};
use super::link::values;
use super::sql;
use crate::backend::Scope;
use crate::claim::{Attempt, Busy, Claim, Grant, Holder, Holding, Note, Waiter};
use crate::error::{ErrorKind, Result};
use crate::key::Key;
use crate::token::FencingToken;

pub(super) async fn try_acquire(lanes: &Arc<Lanes>, claim: &Claim) -> Result<Attempt<Grant>> {
    if claim.waits {
        lanes.bells.expect(claim.owner);
    }
    loop {
        let values = values![
            claim.key.as_str().as_bytes().to_vec(),
            claim.owner.to_string(),
            span(claim.ttl),
            note(&claim.note),
            claim.waits,
            lanes.channel.clone(),
        ];
        let rows = lanes.ask(&sql::TAKE, values).await?;
        // No row: somebody made it while the statement ran, and its snapshot does not show it.
        let Some(row) = rows.first() else { continue };
        return answer(lanes, claim, row);
    }
}

fn answer(lanes: &Lanes, claim: &Claim, row: &Row) -> Result<Attempt<Grant>> {
    let (sure, owner): (bool, Option<String>) = (get(row, 0)?, get(row, 1)?);
    let token = token(get(row, 2)?)?;
    if sure && owner.is_some_and(|owner| owner == claim.owner.to_string()) {
        lanes.bells.forget(claim.owner);
        let token = token.ok_or_else(|| fault::odd("a token"))?;
        return Ok(Attempt::Granted(Grant::new(token, claim.ttl)));
    }
    if let Some(token) = token {
        lanes.bells.shown(claim.owner, token);
    }
    let (left, held_for): (f64, f64) = (get(row, 3)?, get(row, 4)?);
    let (line, ahead): (String, Option<i64>) = (get(row, 5)?, get(row, 6)?);
    let mut busy = Busy::new(claim.key.clone());
    busy.ahead = ahead.and_then(|ahead| u32::try_from(ahead).ok());
    let mut look = seconds(left).max(SOON);
    if lanes.settings.pooled {
        // Nobody rings: who is near the front looks often, the others less.
        look = look.min(LOOK * busy.ahead.unwrap_or(0).min(100).saturating_add(1));
    }
    busy.retry_after = Some(look);
    busy.holder = Some(Box::new(Holder {
        token,
        held_for: Some(seconds(held_for)),
        ttl_left: Some(seconds(left)),
        ..Holder::new(&Note::decode(&line))
    }));
    Ok(Attempt::Busy(busy))
}

pub(super) async fn release(lanes: &Arc<Lanes>, claim: &Claim) -> Result<bool> {
    lanes.bells.forget(claim.owner);
    let values = || values![claim.key.as_str().as_bytes().to_vec(), claim.owner.to_string()];
    let sql = if claim.doubtful { &sql::RELEASE_DOUBTFUL } else { &sql::RELEASE };
    let mut answer = lanes.ask(sql, values()).await;
    // Idle connections may have died unnoticed, all of them. Giving back twice does no harm, and
    // this way of doing it also finds out that the first time was enough.
    for _ in 0..lanes.most() {
        match answer {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                answer = lanes.ask(&sql::RELEASE_DOUBTFUL, values()).await;
            }
            _ => break,
        }
    }
    let rows = answer?;
    rows.first().map_or(Ok(false), |row| get(row, 0))
}

pub(super) async fn until_free(lanes: &Arc<Lanes>, claim: &Claim) -> Option<Grant> {
    match lanes.bells.wait(claim.owner).await {
        Call::Granted(token) => Some(Grant::new(token, claim.ttl)),
        Call::Look => None,
        Call::None => {
            tokio::time::sleep(LOOK).await;
            None
        }
    }
}

pub(super) async fn list(lanes: &Arc<Lanes>, scope: Scope<'_>) -> Result<Vec<Holding>> {
    let rows = match scope {
        Scope::Key(key) => {
            lanes.ask(&sql::LIST_KEY, values![key.as_str().as_bytes().to_vec()]).await?
        }
        Scope::Prefix(prefix) => {
            let (from, to) = range(prefix);
            lanes.ask(&sql::LIST, values![from, to]).await?
        }
    };
    rows.iter().filter_map(|row| holding(row).transpose()).collect()
}

pub(super) async fn evict(lanes: &Arc<Lanes>, key: &Key, token: FencingToken) -> Result<bool> {
    let values = || values![key.as_str().as_bytes().to_vec(), token.as_i64()];
    let found = lanes.ask(&sql::FIND, values()).await?;
    let Some(row) = found.first() else { return Ok(false) };
    let (owner, channel): (String, String) = (get(row, 0)?, get(row, 1)?);
    let evicted = !lanes.ask(&sql::EVICT, values()).await?.is_empty();
    if evicted {
        // A hint: the holder would find out at its next renewal.
        lanes.ask(&sql::NOTIFY, values![channel, format!("lost {owner}")]).await?;
    }
    Ok(evicted)
}

/// A row of a listing: key, token, note, seconds left, seconds held, waiters' notes and waits.
/// `None` for a name that is no key, as a foreign client may have written one.
pub(super) fn holding(row: &Row) -> Result<Option<Holding>> {
    let key: Vec<u8> = get(row, 0)?;
    let key = String::from_utf8(key).ok().and_then(|key| Key::new(key).ok());
    let Some(key) = key else { return Ok(None) };
    let (line, left): (String, f64) = (get(row, 2)?, get(row, 3)?);
    let held_for: f64 = get(row, 4)?;
    let holder = Holder {
        token: token(get(row, 1)?)?,
        held_for: Some(seconds(held_for)),
        ttl_left: Some(seconds(left)),
        ..Holder::new(&Note::decode(&line))
    };
    let mut holding = Holding::new(key, holder);
    let (notes, waits): (Vec<String>, Vec<f64>) = (get(row, 5)?, get(row, 6)?);
    let waiters = notes.iter().zip(waits).map(|(line, wait)| Waiter {
        waiting_for: Some(seconds(wait)),
        ..Waiter::new(&Note::decode(line))
    });
    holding.waiters = waiters.collect();
    Ok(Some(holding))
}

/// The first key with this prefix, and the first beyond: UTF-8 has no byte 0xff.
pub(super) fn range(prefix: &str) -> (Vec<u8>, Option<Vec<u8>>) {
    let from = prefix.as_bytes().to_vec();
    let mut to = from.clone();
    let beyond = to.last_mut().map(|last| *last += 1);
    (from, beyond.map(|()| to))
}

/// PostgreSQL's text holds every character but NUL.
pub(super) fn note(note: &Note) -> String {
    note.encode().replace('\0', "\u{fffd}")
}

/// A lease for the server, in seconds: parts of a millisecond are rounded up, so that it does not
/// end before the holder's own deadline.
pub(super) fn span(ttl: Duration) -> f64 {
    let up = ttl.as_nanos().div_ceil(1_000_000);
    Duration::from_millis(u64::try_from(up).unwrap_or(u64::MAX)).as_secs_f64()
}

pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

pub(super) fn token(number: i64) -> Result<Option<FencingToken>> {
    let number = u64::try_from(number).map_err(|_| fault::odd("a token"))?;
    Ok(FencingToken::new(number))
}

pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T> {
    row.try_get(column).map_err(fault::from_server)
}

/// A holder that is about to expire is not asked about more often than this.
const SOON: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_rounded_up() {
        for (nanos, seconds) in [(1_000_000, 0.001), (1_000_001, 0.002), (1, 0.001), (0, 0.0)] {
            assert!((span(Duration::from_nanos(nanos)) - seconds).abs() < 1e-9, "{nanos}");
        }
    }

    #[test]
    fn a_prefix_is_a_range_of_bytes() {
        assert_eq!(range(""), (vec![], None));
        assert_eq!(range("a/"), (b"a/".to_vec(), Some(b"a0".to_vec())));
        let (from, to) = range("\u{10ffff}");
        assert!(to.is_some_and(|to| to > from));
    }
}
