//! The lab's own eye on the server: who holds the lock, seen from outside and past all proxies.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tenure::backend::{Backend, Scope};
use tenure::{Config, FencingToken, Holding, Key};
use tokio::runtime::Runtime;

use crate::schemes::Lock;

/// A connection of the lab's own.
#[derive(Debug)]
pub(crate) struct Observer {
    runtime: Runtime,
    backend: Arc<dyn Backend>,
    key: Key,
}

impl Observer {
    pub(crate) fn open(lock: &Lock, url: &str, key: &str) -> Result<Observer> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let backend = match lock.by_hand(url) {
            Some((backend, _)) => backend,
            None => {
                let config: Config = url.parse()?;
                runtime.block_on(async { config.open().await })?
            }
        };
        Ok(Observer { runtime, backend, key: Key::new(key)? })
    }

    /// Who holds the lock now.
    pub(crate) fn look(&self) -> Result<Option<Holding>> {
        let key = self.key.clone();
        let look = async { self.backend.list(Scope::Key(&key)).await };
        let limited = async { tokio::time::timeout(LONGEST, look).await };
        Ok(self.runtime.block_on(limited)??.into_iter().next())
    }

    /// Takes the lock away from its holder.
    pub(crate) fn evict(&self, token: u64) -> Result<bool> {
        let token = FencingToken::new(token).context("no token is 0")?;
        let evict = async { self.backend.evict(&self.key, token).await };
        let limited = async { tokio::time::timeout(LONGEST, evict).await };
        Ok(self.runtime.block_on(limited)??)
    }
}

const LONGEST: Duration = Duration::from_secs(5);
