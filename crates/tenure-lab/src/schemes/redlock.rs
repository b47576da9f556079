//! Scheme 7: Redlock as it is described, on five masters that are independent of each other.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::join_all;
use redis::cmd;
use tenure::backend::Claim;
use tenure::{Error, ErrorKind, Result};

use super::owned::COMPARE_AND_DELETE;
use super::redis_connection::RedisConnection;
use super::scheme::Scheme;
use super::{millis, redis_key};

/// A majority of nodes, within the lease. **Wrong:** it has no token, trusts the clock of every
/// node, and does not notice that a node has lost its locks.
#[derive(Debug)]
pub(crate) struct Redlock(pub(crate) Vec<RedisConnection>);

impl Redlock {
    /// Deletes the claim's keys on all nodes: on how many there was one.
    async fn release_everywhere(&self, claim: &Claim) -> usize {
        let key = redis_key(&claim.key);
        let keys = [key.as_str()];
        let owner = [claim.owner.to_string()];
        let requests = self.0.iter().map(|node| node.script(COMPARE_AND_DELETE, &keys, &owner));
        let released = join_all(requests).await;
        released.into_iter().filter(|released| matches!(released, Ok(true))).count()
    }
}

#[async_trait]
impl Scheme for Redlock {
    fn name(&self) -> &'static str {
        "redlock-classic"
    }

    fn flaw(&self) -> &'static str {
        "no token; a node's clock or its amnesia lets two in"
    }

    fn nodes(&self) -> &[RedisConnection] {
        &self.0
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Option<u64>> {
        let start = Instant::now();
        let mut set = cmd("SET");
        set.arg(redis_key(&claim.key)).arg(claim.owner.to_string());
        set.arg("NX").arg("PX").arg(millis(claim.ttl));
        let requests = self.0.iter().map(|node| node.query::<Option<String>>(&set));
        let responses = join_all(requests).await;
        let granted = responses.iter().filter(|response| matches!(response, Ok(Some(_)))).count();
        let failed = responses.iter().filter(|response| response.is_err()).count();
        let drift = claim.ttl / 100 + Duration::from_millis(2);
        if granted >= self.majority() && start.elapsed() + drift < claim.ttl {
            return Ok(Some(1));
        }
        self.release_everywhere(claim).await;
        if failed >= self.majority() {
            return Err(Error::new(ErrorKind::Unavailable, "no response from a majority of nodes"));
        }
        Ok(None)
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        Ok(self.release_everywhere(claim).await >= self.majority())
    }
}
