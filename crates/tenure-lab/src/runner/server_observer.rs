//! The lab's own connection to the server, past all proxies: who holds the lock.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tenure::backend::{Backend, Scope};
use tenure::{Config, FencingToken, Holding, Key};
use tokio::runtime::Runtime;

use crate::schemes::LockSpec;

/// How long the server may take to respond.
const RESPONSE_LIMIT: Duration = Duration::from_secs(5);

/// A connection for one lock.
#[derive(Debug)]
pub(super) struct ServerObserver {
    runtime: Runtime,
    backend: Arc<dyn Backend>,
    key: Key,
}

impl ServerObserver {
    pub(super) fn open(lock: &LockSpec, url: &str, key: &str) -> Result<ServerObserver> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let backend = match lock.hand_written(url) {
            Some((backend, _)) => backend,
            None => {
                let config: Config = url.parse()?;
                runtime.block_on(async { config.open().await })?
            }
        };
        Ok(ServerObserver { runtime, backend, key: Key::new(key)? })
    }

    /// The holder of the lock, and its waiters; none if the lock is free.
    pub(super) fn holding(&self) -> Result<Option<Holding>> {
        let key = self.key.clone();
        let list = async { self.backend.list(Scope::Key(&key)).await };
        let limited = async { tokio::time::timeout(RESPONSE_LIMIT, list).await };
        Ok(self.runtime.block_on(limited)??.into_iter().next())
    }

    /// Evicts the holder: whether there was one.
    pub(super) fn evict(&self, token: u64) -> Result<bool> {
        let token = FencingToken::new(token).context("a token is never 0")?;
        let evict = async { self.backend.evict(&self.key, token).await };
        let limited = async { tokio::time::timeout(RESPONSE_LIMIT, evict).await };
        Ok(self.runtime.block_on(limited)??)
    }
}
