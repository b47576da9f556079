//! One of the independent masters of a Redlock: the plain layout, without an order among waiters,
//! and two requests that only Redlock makes.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Value;

use super::admin::{self, HeldLock};
use super::config::{
    self, Address, Config, DatabaseLogin, Layout, QueueOrder, TimeLimits, Topology,
};
use super::layout::Keys;
use super::layout::response::unexpected;
use super::{Redis, wait};
use crate::backend::{Claim, Scope};
use crate::error::Result;
use crate::key::Key;
use crate::support::url::Url;
use crate::token::FencingToken;

/// A node: a [`Redis`] for most of what Redlock requests.
#[derive(Debug)]
pub(in crate::backends) struct RedlockNode {
    pub(in crate::backends) redis: Redis,
}

impl RedlockNode {
    /// The nodes that a URL names.
    pub(in crate::backends) fn all(url: &mut Url) -> Result<Vec<RedlockNode>> {
        let path = url.path().trim_matches('/').to_owned();
        let database = if path.is_empty() { 0 } else { config::number("db", &path)? };
        let login = DatabaseLogin { login: url.login(), database };
        let limits = TimeLimits { response: config::RESPONSE, connect: config::connect(url)? };
        let memory = config::memory(url)?;
        let tls = config::tls(url, false)?;
        let node = |address: Address| {
            let config = Config {
                topology: Topology::Single(address),
                login: login.clone(),
                layout: Layout::Plain,
                order: QueueOrder::Barging,
                replicas: 0,
                memory,
                limits,
                tls: tls.clone(),
            };
            RedlockNode { redis: Redis::new(config, true) }
        };
        Ok(config::addresses(url)?.into_iter().map(node).collect())
    }

    /// Connects and logs in, if that is still to be done.
    pub(in crate::backends) async fn connect(&self) -> Result<()> {
        wait::probe(&self.redis).await
    }

    /// Whether the server has run for so long. A restart breaks the connection, so that this is
    /// read again with each.
    pub(in crate::backends) async fn has_run_for(&self, longest: Duration) -> Result<bool> {
        let uptime = self.redis.servers.connection("").await?.uptime;
        Ok(uptime.is_some_and(|uptime| uptime.was + uptime.at.elapsed() >= longest))
    }

    /// Makes later grants on this node have higher tokens than this one. `false` if the claim does
    /// not hold the lock here.
    pub(in crate::backends) async fn raise_token(
        &self,
        claim: &Claim,
        token: FencingToken,
    ) -> Result<bool> {
        let keys = Keys::of(claim.key.as_str());
        let call = self.redis.scripts.raise_token(keys, claim, token);
        match self.redis.servers.run(keys.lock, &call).await? {
            Value::Int(raised) => Ok(raised == 1),
            other => Err(unexpected("raise", &other)),
        }
    }

    /// Who holds and who waits on this node.
    pub(in crate::backends) async fn held_locks(
        &self,
        scope: Scope<'_>,
    ) -> Result<BTreeMap<Key, HeldLock>> {
        admin::held_locks(&self.redis, scope).await
    }
}
