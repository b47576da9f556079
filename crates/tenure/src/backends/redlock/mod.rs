//! Redlock: a lock is held by the client that holds it on a majority of several masters that know
//! nothing of each other. `docs/backends/redlock.md` is the user's page.
//!
//! Beyond the published algorithm: the token is raised on a majority before a grant is returned,
//! so that tokens grow from grant to grant; and a node that may have forgotten a lock by a restart
//! does not count.
//!
//! - `config`: what the URL says
//! - `quorum`: the nodes, and how a majority of them responds
//! - `acquire`: one round over all nodes
//! - `downgrade`: makes a grant shared, confirmed by a majority
//! - `renew`, `release`: confirmed by a majority
//! - `wait`: until free, until lost
//! - `rounds`: what is remembered of a claim from round to round, tombstones above all
//! - `admin`: list and evict
//! - `doctor`: what operators should know about the nodes
//!
//! Each node is a `RedlockNode` of the folder `redis`, which has keys, scripts and connections.

mod acquire;
mod admin;
mod config;
mod doctor;
mod downgrade;
mod quorum;
mod release;
mod renew;
mod rounds;
mod wait;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use self::config::Config;
use self::quorum::Quorum;
use self::rounds::Rounds;
use crate::backend::{Attempt, Backend, Claim, Fencing, Grant, Holding, Info, Modes, Order, Scope};
use crate::error::Result;
use crate::finding::Finding;
use crate::key::Key;
use crate::support::url::Url;
use crate::token::FencingToken;

/// Opens `redlock://h1,h2,h3,h4,h5`.
pub(crate) async fn open(url: Url) -> Result<Redlock> {
    let quorum = Quorum { config: Config::from_url(url)? };
    quorum.connect().await?;
    Ok(Redlock { quorum, rounds: Rounds::default() })
}

/// Locks on a majority of independent Redis masters. Opened by URL; see `docs/backends/redlock.md`.
///
/// # Examples
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("redlock://a.example,b.example,c.example?longest=30s").await?;
/// let guard = locks.lock("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub struct Redlock {
    quorum: Quorum,
    /// Under which name a claim is known to the nodes.
    rounds: Rounds,
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock").field("nodes", &self.quorum.config.nodes).finish()
    }
}

#[async_trait]
impl Backend for Redlock {
    fn info(&self) -> Info {
        let mut info = Info::new("redlock");
        // As on one node: where a majority forgets, only wall clocks keep tokens growing.
        info.fencing = Fencing::BestEffort;
        info.order = Order::Any;
        info.min_ttl = self.quorum.min_ttl();
        if self.quorum.config.forgets {
            info.max_ttl = self.quorum.config.longest;
        }
        // No permits: with two permits, three claims with a majority each fit on five nodes.
        info.modes = Modes { shared: true, permits: false };
        info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        match claim.token {
            Some(token) => downgrade::downgrade(self, claim, token).await,
            None => acquire::try_acquire(self, claim).await,
        }
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
        admin::list(&self.quorum, scope).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        admin::evict(&self.quorum, key, token).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::doctor(&self.quorum).await
    }
}

/// The examples of the user's page are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../../docs/backends/redlock.md")]
struct RedlockPage;
