//! Schemes 1, 3 and 4: a key whose value does not name its owner, so that a client whose lease is
//! over deletes the lock of the next holder.

use async_trait::async_trait;
use redis::cmd;
use tenure::Result;
use tenure::backend::Claim;

use super::redis_connection::RedisConnection;
use super::scheme::Scheme;
use super::{millis, redis_key};

const SETNX_AND_EXPIRE: &str = "if redis.call('SETNX', KEYS[1], 'locked') == 1 then
    redis.call('PEXPIRE', KEYS[1], ARGV[1]) return 1 end return 0";

/// `SETNX`, then `EXPIRE`. **Wrong:** a crash between the two leaves a key that never expires, and
/// `DEL` deletes the lock of any holder.
#[derive(Debug)]
pub(crate) struct SetnxExpire(pub(crate) RedisConnection);

#[async_trait]
impl Scheme for SetnxExpire {
    fn name(&self) -> &'static str {
        "redis-setnx-expire"
    }

    fn flaw(&self) -> &'static str {
        "a crash between SETNX and EXPIRE locks for ever, and DEL deletes any client's lock"
    }

    fn nodes(&self) -> &[RedisConnection] {
        std::slice::from_ref(&self.0)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Option<u64>> {
        let key = redis_key(&claim.key);
        if !self.0.query::<bool>(cmd("SETNX").arg(&key).arg("locked")).await? {
            return Ok(None);
        }
        self.0.query::<bool>(cmd("PEXPIRE").arg(&key).arg(millis(claim.ttl))).await?;
        Ok(Some(1))
    }
}

/// `SETNX` and `EXPIRE` in one script. **Wrong:** `DEL` deletes the lock of any holder.
#[derive(Debug)]
pub(crate) struct Scripted(pub(crate) RedisConnection);

#[async_trait]
impl Scheme for Scripted {
    fn name(&self) -> &'static str {
        "redis-script"
    }

    fn flaw(&self) -> &'static str {
        "DEL deletes any client's lock"
    }

    fn nodes(&self) -> &[RedisConnection] {
        std::slice::from_ref(&self.0)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Option<u64>> {
        let arguments = [millis(claim.ttl).to_string()];
        let acquired: bool =
            self.0.script(SETNX_AND_EXPIRE, &[&redis_key(&claim.key)], &arguments).await?;
        Ok(acquired.then_some(1))
    }
}

/// `SET … NX PX`. **Wrong:** `DEL` deletes the lock of any holder.
#[derive(Debug)]
pub(crate) struct SetNx(pub(crate) RedisConnection);

#[async_trait]
impl Scheme for SetNx {
    fn name(&self) -> &'static str {
        "redis-set-nx"
    }

    fn flaw(&self) -> &'static str {
        "DEL deletes any client's lock"
    }

    fn nodes(&self) -> &[RedisConnection] {
        std::slice::from_ref(&self.0)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Option<u64>> {
        let mut set = cmd("SET");
        set.arg(redis_key(&claim.key)).arg("locked").arg("NX").arg("PX").arg(millis(claim.ttl));
        Ok(self.0.query::<Option<String>>(&set).await?.map(|_| 1))
    }
}
