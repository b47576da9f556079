//! Renewals, and what replicas have of grants and renewals.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::answer;
use super::names::Names;
use super::script::Argument;
use super::wire::Wire;
use super::{Redis, from_redis, ms};
use crate::backend::Claim;
use crate::claim::LostReason;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;

impl Redis {
    /// Renews in groups that one script may carry. Each is bounded by itself, and somewhat below
    /// the core's own limit for the call: a server that is silent about some of them must not keep
    /// the others' responses from the core.
    pub(super) async fn renewed(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        let mut order: Vec<usize> = (0..claims.len()).collect();
        let slot = |at: &usize| self.servers.slot(claims[*at].key.as_str());
        order.sort_by_key(slot);
        let groups = order.chunk_by(|a, b| slot(a) == slot(b));
        let calls: Vec<&[usize]> = groups.flat_map(|group| group.chunks(RENEWALS)).collect();
        let limit = limit(claims);
        let answers = join_all(calls.iter().map(|call| async {
            let claims: Vec<&Claim> = call.iter().map(|at| &claims[*at]).collect();
            let renewing = tokio::time::timeout(limit, self.renew_together(&claims));
            renewing.await.unwrap_or_else(|_| vec![Err(no_response(limit)); claims.len()])
        }));
        let mut renewed: Vec<_> = order.iter().copied().zip(answers.await.concat()).collect();
        renewed.sort_by_key(|(at, _)| *at);
        renewed.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Renews claims that one call may carry: in a cluster, those of one slot.
    async fn renew_together(&self, claims: &[&Claim]) -> Vec<Result<Duration>> {
        let (answers, wire) = match self.run_renewals(claims).await {
            Ok(answered) => answered,
            Err(error) => return vec![Err(error); claims.len()],
        };
        let answers = match answers {
            Value::Array(answers) if answers.len() == claims.len() => answers,
            other => return vec![Err(answer::odd("renew", &other)); claims.len()],
        };
        // Once for all of them: it is about everything that was written on this connection.
        let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
        let replicated = self.replicated(&wire, shortest / 6, &claims[0].key).await;
        let renewed = |(claim, answer): (&&Claim, &Value)| match answer {
            Value::Int(1) => replicated.clone().map(|()| claim.ttl),
            _ if self.post.was_evicted(claim.owner) => Err(Error::gone(LostReason::Evicted)),
            Value::Int(-2) => Err(Error::gone(LostReason::TakenOver)),
            _ => Err(Error::new(ErrorKind::Lost, "the lock is not held")),
        };
        claims.iter().zip(&answers).map(renewed).collect()
    }

    async fn run_renewals(&self, claims: &[&Claim]) -> Result<(Value, Arc<Wire>)> {
        let names: Vec<_> = claims.iter().map(|claim| Names::of(claim.key.as_str())).collect();
        let owners: Vec<_> = claims.iter().map(|claim| claim.owner.to_string()).collect();
        let token = |claim: &&Claim| claim.token.map_or(String::new(), |token| token.to_string());
        let tokens: Vec<_> = claims.iter().map(token).collect();
        let keys: Vec<&str> =
            names.iter().flat_map(|names| [&*names.lock, &*names.state]).collect();
        let mut arguments = vec![Argument::Number(ms(self.settings.memory))];
        for ((claim, owner), token) in claims.iter().zip(&owners).zip(&tokens) {
            let (ttl, fixed) = (ms(claim.ttl), i64::from(claim.fixed));
            let owner = Argument::Text(owner);
            arguments.extend([owner, Argument::Number(ttl), Argument::Text(token)]);
            arguments.push(Argument::Number(fixed));
        }
        let call = self.scripts.renew.call(&keys, &arguments);
        let servers = self.renewing.as_ref().unwrap_or(&self.servers);
        let wire = servers.wire(&names[0].lock).await?;
        // It is never closed.
        let _turn = wire.renewing.acquire().await.ok();
        servers.ask_again_on(wire.clone(), &names[0].lock, &call).await
    }

    /// Makes sure that as many replicas as the URL wants have what was written on this connection.
    /// A lease that only the master has extended is none: a failover to a replica which has the
    /// grant would let the next holder in at the end of the lease that was granted.
    async fn replicated(&self, wire: &Wire, longest: Duration, key: &Key) -> Result<()> {
        let wanted = self.settings.replicas;
        if wanted == 0 {
            return Ok(());
        }
        // The connection waits as well, so that the longest has to be below the limit of the call:
        // else this would look like a silent server.
        let limit = ms((self.settings.limits.response / 2).min(longest));
        let answer = wire.ask(redis::cmd("WAIT").arg(wanted).arg(limit)).await;
        let have = match answer {
            Ok(Value::Int(have)) => have,
            Ok(_) => 0,
            Err(error) => return Err(from_redis(error, "redis")),
        };
        if have >= i64::from(wanted) {
            return Ok(());
        }
        let message = format!("{have} of {wanted} replicas have what the master says of `{key}`");
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// The same for a grant, which is undone if they have it not.
    pub(super) async fn grant_replicated(&self, wire: &Wire, claim: &Claim) -> Result<()> {
        match self.replicated(wire, claim.ttl / 5, &claim.key).await {
            Err(error) => {
                self.give_back(claim, Duration::ZERO).await?;
                Err(error)
            }
            replicated => replicated,
        }
    }
}

/// Four fifths of the time that the core gives such a call: a quarter of the shortest ttl, between
/// 20 ms and 5 s.
fn limit(claims: &[Claim]) -> Duration {
    let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
    (shortest / 5).clamp(Duration::from_millis(16), Duration::from_secs(4))
}

fn no_response(limit: Duration) -> Error {
    let message = format!("no answer from redis to a renewal within {} ms", limit.as_millis());
    Error::new(ErrorKind::Unavailable, message)
}

/// How many renewals one script does: the server is busy for about half a millisecond.
const RENEWALS: usize = 100;
