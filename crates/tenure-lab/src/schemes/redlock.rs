//! Scheme 7: Redlock as its description has it, on five masters that do not know each other.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::join_all;
use redis::cmd;
use tenure::backend::Claim;
use tenure::{Error, ErrorKind, Result};

use super::classical::Scheme;
use super::owned::COMPARE_AND_DELETE;
use super::wire::Wire;
use super::{millis, name};

/// A majority of nodes, within the lease. **Wrong:** it has no token, trusts the clock of every
/// node, and takes a node that forgot its locks for one that never had any.
#[derive(Debug)]
pub(crate) struct Redlock(pub(crate) Vec<Wire>);

impl Redlock {
    async fn give_everywhere(&self, claim: &Claim) -> usize {
        let (key, owner) = (name(&claim.key), [claim.owner.to_string()]);
        let keys = [key.as_str()];
        let asks = self.0.iter().map(|node| node.script(COMPARE_AND_DELETE, &keys, &owner));
        join_all(asks).await.into_iter().filter(|given| matches!(given, Ok(true))).count()
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

    fn nodes(&self) -> &[Wire] {
        &self.0
    }

    async fn take(&self, claim: &Claim) -> Result<Option<u64>> {
        let start = Instant::now();
        let mut set = cmd("SET");
        set.arg(name(&claim.key)).arg(claim.owner.to_string());
        set.arg("NX").arg("PX").arg(millis(claim.ttl));
        let asks = self.0.iter().map(|node| node.ask::<Option<String>>(&set));
        let answers = join_all(asks).await;
        let taken = answers.iter().filter(|answer| matches!(answer, Ok(Some(_)))).count();
        let silent = answers.iter().filter(|answer| answer.is_err()).count();
        let drift = claim.ttl / 100 + Duration::from_millis(2);
        if taken >= self.majority() && start.elapsed() + drift < claim.ttl {
            return Ok(Some(1));
        }
        self.give_everywhere(claim).await;
        match silent >= self.majority() {
            true => Err(Error::new(ErrorKind::Unavailable, "no majority answers")),
            false => Ok(None),
        }
    }

    async fn give(&self, claim: &Claim) -> Result<bool> {
        Ok(self.give_everywhere(claim).await >= self.majority())
    }
}
