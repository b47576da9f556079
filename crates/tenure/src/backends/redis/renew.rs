//! Renewing: many leases in few scripts.
//!
//! A script extends what an owner still holds, and creates nothing (`lua/renew.lua`). It may
//! therefore be sent again when a connection breaks. In a cluster, one script carries the claims of
//! one slot. Each script has a time limit of its own, somewhat below that of the engine for the
//! whole call: a server that is silent about some claims must not keep the responses about the
//! others from the engine.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::connection::Connection;
use super::layout::scripts::unexpected;
use super::{Redis, replicas};
use crate::backend::{Claim, LostReason};
use crate::error::{Error, Result};

/// How many renewals one script does: the server is busy for about half a millisecond.
const CLAIMS_PER_SCRIPT: usize = 100;

pub(super) async fn renew(redis: &Redis, claims: &[Claim]) -> Vec<Result<Duration>> {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    let slot = |at: &usize| redis.servers.slot(claims[*at].key.as_str());
    order.sort_by_key(slot);
    let slots = order.chunk_by(|a, b| slot(a) == slot(b));
    let batches: Vec<&[usize]> = slots.flat_map(|slot| slot.chunks(CLAIMS_PER_SCRIPT)).collect();
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

/// Renews claims that one script may carry: in a cluster, those of one slot.
async fn renew_batch(redis: &Redis, claims: &[&Claim]) -> Vec<Result<Duration>> {
    let (response, connection) = match run(redis, claims).await {
        Ok(response) => response,
        Err(error) => return vec![Err(error); claims.len()],
    };
    let results = match response {
        Value::Array(results) if results.len() == claims.len() => results,
        other => return vec![Err(unexpected("renew", &other)); claims.len()],
    };
    // Once for all of them: it is about everything that was written on this connection.
    let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
    let key = &claims[0].key;
    let replicated = replicas::confirm(&redis.config, &connection, shortest / 6, key).await;
    let renewed = |(claim, result): (&&Claim, &Value)| match result {
        Value::Int(1) => replicated.clone().map(|()| claim.ttl),
        _ if redis.push.was_evicted(claim.owner) => Err(Error::gone(LostReason::Evicted)),
        Value::Int(-2) => Err(Error::gone(LostReason::TakenOver)),
        _ => Err(Error::not_held()),
    };
    claims.iter().zip(&results).map(renewed).collect()
}

async fn run(redis: &Redis, claims: &[&Claim]) -> Result<(Value, Arc<Connection>)> {
    let call = redis.scripts.renew(claims);
    let key = claims[0].key.as_str();
    let servers = redis.renewal_servers.as_ref().unwrap_or(&redis.servers);
    let connection = servers.connection(key).await?;
    // The semaphore is never closed.
    let _turn = connection.renewals.acquire().await.ok();
    servers.run_on_or_retry(connection.clone(), key, &call).await
}

/// Four fifths of the time that the engine gives such a call: a quarter of the shortest ttl,
/// between 20 ms and 5 s.
fn limit(claims: &[Claim]) -> Duration {
    let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
    (shortest / 5).clamp(Duration::from_millis(16), Duration::from_secs(4))
}
