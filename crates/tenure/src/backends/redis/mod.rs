//! Redis and Valkey: one server, the master that sentinels name, or a cluster.
//!
//! `docs/backends/redis.md` is the user's page. One acquire and its wait: `acquire` → `wait` (woken
//! by `push`) → `renew` → `release`.
//!
//! - `config`: what the URL says
//! - `connection`: connections, and which server has a key
//! - `layout`: keys, channels and scripts; `lua/` has the scripts themselves
//! - `acquire`: granting, and joining the queue
//! - `renew`: renewing many leases in few scripts
//! - `release`: releasing, cancelling, and the tombstone against late requests
//! - `wait`: until free, until lost
//! - `push`: the way of a pushed message to the claim that waits for it
//! - `replicas`: what replicas have of a grant, for `replicas=N`
//! - `admin`: list and evict
//! - `doctor`: what operators should know about a server
//! - `error`: what the client library's errors mean
//! - `redlock_node`: what `redlock` requests of each of its masters

#![cfg_attr(
    not(feature = "redlock"),
    allow(dead_code, unused_imports, reason = "what Redlock requests of its nodes")
)]

mod acquire;
mod admin;
pub(super) mod config;
mod connection;
mod doctor;
mod error;
mod layout;
mod push;
mod redlock_node;
mod release;
mod renew;
mod replicas;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;

pub(super) use self::admin::{HeldGrant, HeldLock};
use self::config::{Config, QueueOrder};
use self::connection::Servers;
use self::layout::Channels;
use self::layout::scripts::Scripts;
use self::push::PushRouter;
pub(super) use self::redlock_node::RedlockNode;
use crate::backend::{
    Attempt, Backend, Claim, Fencing, Grant, Holding, Info, Modes, Order, Scope, Wakeup,
};
use crate::error::Result;
use crate::finding::Finding;
use crate::key::Key;
use crate::support::url::Url;
use crate::token::FencingToken;

/// A shorter lease could not be renewed over a network.
const MIN_TTL: Duration = Duration::from_millis(50);

/// Opens `redis://`, `rediss://`, `redis+unix://`, and with `+sentinel` or `+cluster` several
/// servers.
pub(crate) async fn open(url: Url) -> Result<Redis> {
    let redis = Redis::new(Config::from_url(url)?, false);
    wait::probe(&redis).await?;
    Ok(redis)
}

/// Locks on Redis or Valkey. Opened by URL; see `docs/backends/redis.md` for all of its options.
///
/// # Examples
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("redis://127.0.0.1/0?ttl=10s").await?;
/// let guard = locks.lock("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub struct Redis {
    config: Config,
    servers: Servers,
    /// With `replicas`, grants wait for replicas on connections of their own, so that nothing else
    /// waits behind them.
    grant_servers: Option<Servers>,
    /// With `replicas`, renewals do so too, and must not wait behind grants.
    renewal_servers: Option<Servers>,
    scripts: Scripts,
    channels: Arc<Channels>,
    push: Arc<PushRouter>,
    /// The server cannot or will not push: waiters poll.
    polls: AtomicBool,
}

impl Redis {
    fn new(config: Config, reads_uptime: bool) -> Redis {
        let push = Arc::new(PushRouter::default());
        let channels = Arc::new(Channels::new(&config));
        let on_push = push.handler();
        let scripts = Scripts::new(&config, &channels);
        let servers = || Servers::new(&config, &scripts, reads_uptime, &on_push);
        Redis {
            servers: servers(),
            grant_servers: (config.replicas > 0).then(servers),
            renewal_servers: (config.replicas > 0).then(servers),
            scripts,
            channels,
            push,
            config,
            polls: AtomicBool::new(false),
        }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("topology", &self.config.topology)
            .field("layout", &self.config.layout)
            .field("polls", &self.polls)
            .field("push", &self.push)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Redis {
    fn info(&self) -> Info {
        let mut info = Info::new("redis");
        // A restart or a failover may lose the last token; then only the wall clock keeps the next
        // one above it, and a wall clock can be set back.
        info.fencing = Fencing::BestEffort;
        info.order = match self.config.order {
            QueueOrder::Barging => Order::Any,
            QueueOrder::Fifo => Order::Fifo,
        };
        info.wakeup = if self.polls.load(Ordering::Relaxed) { Wakeup::Poll } else { Wakeup::Push };
        info.min_ttl = MIN_TTL;
        info.busy_leaves_nothing = true;
        // Without an order a claim to many permits might wait for ever.
        let in_order = info.order == Order::Fifo;
        info.modes = Modes { shared: true, permits: in_order };
        info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        acquire::try_acquire(self, claim).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        renew::renew(self, claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        release::release(self, claim).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        wait::until_free(self, claim).await
    }

    async fn until_lost(&self, claim: &Claim) {
        wait::until_lost(self, claim).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        admin::list(self, scope).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        admin::evict(self, key, token).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::doctor(self).await
    }
}

/// The examples of the user's page are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../../docs/backends/redis.md")]
struct RedisPage;
