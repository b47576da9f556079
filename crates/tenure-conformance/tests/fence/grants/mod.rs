//! Resources that hold one number at the server of the lock itself. There the lock is the fence: a
//! write carries the condition that the grant is still held.
//!
//! What is read at the first contact is safe without a comparison of tokens: the write takes effect
//! only if the grant was held all the time from before the read to the write, and no other holder's
//! write takes effect in that time. The read must only be no older than the grant.

mod consul;
mod etcd;
mod gateway;
mod zookeeper;

use anyhow::Result;
use async_trait::async_trait;
use tenure::FencingToken;

use crate::registers::{Register, open as open_register};

/// What the experiment does with a resource, whatever its fence is made of.
#[async_trait]
pub(crate) trait Resource: Send {
    /// `None` if refused.
    async fn read(&mut self, token: Option<FencingToken>) -> Result<Option<i64>>;
    /// Whether it was admitted.
    async fn write(&mut self, number: i64, token: Option<FencingToken>) -> Result<bool>;
}

/// Opens a resource of this name, which is 0 if it is new. The key of its lock is the same.
pub(crate) async fn open(url: &str, name: &str) -> Result<Box<dyn Resource>> {
    Ok(match url.split_once("://").map(|(scheme, _)| scheme) {
        Some("consul") => Box::new(consul::open(url, name).await?),
        Some("etcd") => Box::new(etcd::open(url, name).await?),
        Some("zk") => Box::new(zookeeper::open(url, name).await?),
        _ => Box::new(Registered(open_register(url, name).await?)),
    })
}

/// A register that compares tokens.
struct Registered(Box<dyn Register>);

#[async_trait]
impl Resource for Registered {
    async fn read(&mut self, token: Option<FencingToken>) -> Result<Option<i64>> {
        Ok(self.0.read(token).await?.ok())
    }

    async fn write(&mut self, number: i64, token: Option<FencingToken>) -> Result<bool> {
        Ok(self.0.write(number, token).await?.is_ok())
    }
}
