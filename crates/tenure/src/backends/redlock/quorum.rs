//! The nodes together: every request goes to all of them at once, and the responses are counted.

use std::time::Duration;

use futures_util::future::join_all;

use super::config::Config;
use crate::backends::redis::RedlockNode;
use crate::error::ErrorKind;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::support::backoff::jitter;

/// A lease has to outlast a few requests, and is never shorter than this.
const MIN_TTL: Duration = Duration::from_millis(50);

/// The nodes, of which a majority decides.
pub(super) struct Quorum {
    pub(super) config: Config,
}

impl Quorum {
    pub(super) fn nodes(&self) -> &[RedlockNode] {
        &self.config.nodes
    }

    /// How many nodes are a majority.
    pub(super) fn majority(&self) -> usize {
        self.nodes().len() / 2 + 1
    }

    /// A lease has to outlast a few rounds.
    pub(super) fn min_ttl(&self) -> Duration {
        self.config.response_limit.saturating_mul(4).max(MIN_TTL)
    }

    /// Connects to all nodes; a majority has to be there.
    pub(super) async fn connect(&self) -> Result<()> {
        let connected = join_all(self.nodes().iter().map(RedlockNode::connect)).await;
        if connected.iter().filter(|connected| connected.is_ok()).count() >= self.majority() {
            return Ok(());
        }
        let error = connected.into_iter().find_map(Result::err);
        Err(error.unwrap_or_else(|| too_few_respond("redlock")))
    }

    /// Awaits one node's response for no longer than a node may take.
    pub(super) async fn bounded<T>(
        &self,
        node: &RedlockNode,
        response: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let limit = self.config.response_limit;
        let timed_out = |_| Err(Error::timed_out(format_args!("{:?}", node.redis), limit));
        tokio::time::timeout(limit, response).await.unwrap_or_else(timed_out)
    }

    /// Whether a node can be trusted to have kept every lock: it has run for longer than any lease.
    pub(super) async fn counts(&self, node: &RedlockNode) -> Result<bool> {
        if !self.config.forgets {
            return Ok(true);
        }
        node.has_run_for(kept_ttl(self.config.longest)).await
    }
}

/// The responses of all nodes to a release or an eviction.
pub(super) struct ReleaseVotes(pub(super) Vec<Result<bool>>);

impl ReleaseVotes {
    /// Whether the lock was held, if enough nodes responded to know.
    pub(super) fn decide(self, majority: usize, key: &Key) -> Result<bool> {
        let held = self.0.iter().flatten().filter(|held| **held).count();
        let silent = self.0.iter().filter(|response| response.is_err()).count();
        if held >= majority {
            return Ok(true);
        }
        // With the silent ones it may have been held: then the outcome is unknown, and not "no".
        if held + silent < majority {
            return Ok(false);
        }
        let error = self.0.into_iter().find_map(Result::err);
        Err(error.unwrap_or_else(|| too_few_respond(key.as_str())))
    }
}

/// How long a grant counts: the nodes' clocks may run at slightly different speeds.
pub(super) fn valid_ttl(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
}

/// For how long the nodes have to keep a lease so that this much of it counts.
pub(super) fn kept_ttl(ttl: Duration) -> Duration {
    ttl.saturating_add(ttl / 50 + Duration::from_millis(4))
}

/// A random pause between these milliseconds, twice as long for each of the first five rounds that
/// were lost.
pub(super) fn random_pause(from: u64, to: u64, lost: u32) -> Duration {
    let pause = jitter(Duration::from_millis(from), Duration::from_millis(to));
    pause * (1 << lost.min(5))
}

pub(super) fn too_few_respond(what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("`{what}`: too few nodes respond"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_for_a_fixed_lease_counts_for_all_of_it() {
        for ms in [1, 50, 999, 30_000, 86_400_000] {
            let ttl = Duration::from_millis(ms);
            assert!(valid_ttl(kept_ttl(ttl)) >= ttl, "{ttl:?}");
        }
    }
}
