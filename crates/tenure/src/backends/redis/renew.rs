//! Renewing: many leases in few scripts.
//!
//! A script extends what an owner still holds, and creates nothing (`lua/renew.lua`). It may
//! therefore be sent again when a connection breaks. In a cluster, one script carries the claims
//! of one slot. Claims that hold beside others have a script of their own
//! (`lua/renew_shared.lua`), which needs more keys. A claim whose grant is of the other sort,
//! because it was downgraded, is sent once more with the other script. Each script has a time
//! limit of its own, somewhat below that of the engine for the whole call: a server that is silent
//! about some claims must not keep the responses about the others from the engine.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::connection::Connection;
use super::layout::response::{number, unexpected};
use super::{Redis, replicas};
use crate::backend::{Claim, LostReason, Mode};
use crate::error::{Error, Result};

/// How many renewals one script does: the server is busy for about half a millisecond.
const CLAIMS_PER_SCRIPT: usize = 100;

/// The response of a script to a claim whose grant the other script knows.
const OTHER_SCRIPT: i64 = -4;

/// Which script renews a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StoredAs {
    Alone,
    BesideOthers,
}

impl StoredAs {
    /// As the claim was acquired; a downgrade may have changed it since.
    fn of(claim: &Claim) -> StoredAs {
        if claim.mode == Mode::Exclusive { StoredAs::Alone } else { StoredAs::BesideOthers }
    }

    fn other(self) -> StoredAs {
        match self {
            StoredAs::Alone => StoredAs::BesideOthers,
            StoredAs::BesideOthers => StoredAs::Alone,
        }
    }
}

pub(super) async fn renew(redis: &Redis, claims: &[Claim]) -> Vec<Result<Duration>> {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    let part =
        |at: &usize| (redis.servers.slot(claims[*at].key.as_str()), StoredAs::of(&claims[*at]));
    order.sort_by_key(part);
    let parts = order.chunk_by(|a, b| part(a) == part(b));
    let batches: Vec<&[usize]> = parts.flat_map(|part| part.chunks(CLAIMS_PER_SCRIPT)).collect();
    let limit = limit(claims);
    let responses = join_all(batches.iter().map(|batch| async {
        let claims: Vec<&Claim> = batch.iter().map(|at| &claims[*at]).collect();
        let renewal = tokio::time::timeout(limit, renew_batch(redis, &claims));
        let timed_out = |_| vec![Err(Error::timed_out("redis", limit)); claims.len()];
        renewal.await.unwrap_or_else(timed_out)
    }));
    // Back to the order of the claims.
    let mut renewed: Vec<_> = order.iter().copied().zip(responses.await.concat()).collect();
    renewed.sort_by_key(|(at, _)| *at);
    renewed.into_iter().map(|(_, result)| result).collect()
}

/// Renews claims that one script may carry: all of them alone or all beside others, and in a
/// cluster those of one slot. Those that it does not know are sent with the other script.
async fn renew_batch(redis: &Redis, claims: &[&Claim]) -> Vec<Result<Duration>> {
    let held = StoredAs::of(claims[0]);
    let first = run(redis, claims, held).await;
    let is_unknown = |result: &Option<Result<Duration>>| result.is_none();
    let unknown = claims.iter().zip(&first).filter(|(_, result)| is_unknown(result));
    let unknown: Vec<&Claim> = unknown.map(|(claim, _)| *claim).collect();
    let mut second =
        if unknown.is_empty() { Vec::new() } else { run(redis, &unknown, held.other()).await }
            .into_iter();
    let known = |result: Option<Result<Duration>>| {
        result.or_else(|| second.next().flatten()).unwrap_or_else(|| Err(Error::not_held()))
    };
    first.into_iter().map(known).collect()
}

/// Runs a script. Responds with nothing to a claim whose grant the other script knows.
async fn run(redis: &Redis, claims: &[&Claim], held: StoredAs) -> Vec<Option<Result<Duration>>> {
    let (results, connection) = match request(redis, claims, held).await {
        Ok(response) => response,
        Err(error) => return vec![Some(Err(error)); claims.len()],
    };
    // Once for all of them: it is about everything that was written on this connection.
    let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
    let key = &claims[0].key;
    let replicated = replicas::confirm(&redis.config, &connection, shortest / 6, key).await;
    let renewed = |(claim, result): (&&Claim, i64)| match result {
        1 => Some(replicated.clone().map(|()| claim.ttl)),
        OTHER_SCRIPT => None,
        _ if redis.push.was_evicted(claim.owner) => Some(Err(Error::gone(LostReason::Evicted))),
        -2 => Some(Err(Error::gone(LostReason::TakenOver))),
        _ => Some(Err(Error::not_held())),
    };
    claims.iter().zip(results).map(renewed).collect()
}

async fn request(
    redis: &Redis,
    claims: &[&Claim],
    held: StoredAs,
) -> Result<(Vec<i64>, Arc<Connection>)> {
    let call = match held {
        StoredAs::Alone => redis.scripts.renew(claims),
        StoredAs::BesideOthers => redis.scripts.renew_shared(claims),
    };
    let key = claims[0].key.as_str();
    let servers = redis.renewal_servers.as_ref().unwrap_or(&redis.servers);
    let connection = servers.connection(key).await?;
    // The semaphore is never closed.
    let _turn = connection.renewals.acquire().await.ok();
    let (response, connection) = servers.run_on_or_retry(connection.clone(), key, &call).await?;
    let results = match &response {
        Value::Array(results) => results.iter().map(number).collect::<Option<Vec<i64>>>(),
        _ => None,
    };
    match results.filter(|results| results.len() == claims.len()) {
        Some(results) => Ok((results, connection)),
        None => Err(unexpected("renew", &response)),
    }
}

/// Four fifths of the time that the engine gives such a call: a quarter of the shortest ttl,
/// between 20 ms and 5 s.
fn limit(claims: &[Claim]) -> Duration {
    let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
    (shortest / 5).clamp(Duration::from_millis(16), Duration::from_secs(4))
}
