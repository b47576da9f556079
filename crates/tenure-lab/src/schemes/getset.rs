//! Scheme 2: `SETNX` with the time of expiry as the value, `GETSET` to replace an expired one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use redis::cmd;
use tenure::backend::Claim;
use tenure::{Key, Result};

use super::redis_connection::RedisConnection;
use super::scheme::{KeyState, Scheme};
use super::{millis, redis_key};

/// The value is the time at which the lock expires, by the clock of the client that set it.
/// **Wrong:** the clients' clocks decide, `DEL` deletes the lock of any holder, and `GETSET`
/// changes the expiry of a lock that it did not win.
#[derive(Debug)]
pub(crate) struct Getset(pub(crate) RedisConnection);

#[async_trait]
impl Scheme for Getset {
    fn name(&self) -> &'static str {
        "redis-getset"
    }

    fn flaw(&self) -> &'static str {
        "the clocks of the clients decide who holds it, and DEL deletes any client's lock"
    }

    fn nodes(&self) -> &[RedisConnection] {
        std::slice::from_ref(&self.0)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Option<u64>> {
        let key = redis_key(&claim.key);
        let now = wall_ms();
        let end = (now + millis(claim.ttl)).to_string();
        if self.0.query::<bool>(cmd("SETNX").arg(&key).arg(&end)).await? {
            return Ok(Some(1));
        }
        let seen: Option<String> = self.0.query(cmd("GET").arg(&key)).await?;
        if !is_expired(seen.as_deref(), now) {
            return Ok(None);
        }
        let before: Option<String> = self.0.query(cmd("GETSET").arg(&key).arg(&end)).await?;
        Ok(is_expired(before.as_deref(), now).then_some(1))
    }

    async fn state(&self, key: &Key) -> Result<KeyState> {
        let end: Option<u64> = self.0.query(cmd("GET").arg(redis_key(key))).await?;
        let left = end.map(|end| end.saturating_sub(wall_ms())).filter(|left| *left > 0);
        Ok(left.map_or(KeyState::Free, |left| KeyState::Expires(Duration::from_millis(left))))
    }
}

fn is_expired(end: Option<&str>, now: u64) -> bool {
    end.and_then(|end| end.parse::<u64>().ok()).is_none_or(|end| end < now)
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    millis(since)
}
