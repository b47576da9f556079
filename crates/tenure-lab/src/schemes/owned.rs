//! Schemes 5 and 6: the value or field names the owner, and only the owner deletes it.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use tenure::Result;
use tenure::backend::Claim;

use super::redis_connection::RedisConnection;
use super::scheme::{KeyState, Scheme};
use super::{key_state, millis, redis_key};

pub(super) const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

const SET_UNIQUE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
    return redis.call('INCR', KEYS[2]) end return false";

const COUNT_UP: &str = "
    local mine = redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1
    if redis.call('EXISTS', KEYS[1]) == 1 and not mine then return false end
    redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    if mine then return tonumber(redis.call('GET', KEYS[2])) end
    return redis.call('INCR', KEYS[2])";

const COUNT_DOWN: &str = "
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
    if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then return 1 end
    redis.call('DEL', KEYS[1])
    redis.call('PUBLISH', KEYS[1], 'free')
    return 1";

const EXTEND: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])";

/// A unique value, an atomic compare-and-delete, and a counter for the token. **Wrong:** the
/// counter goes back when the server loses its data, so that two holders can have the same token.
#[derive(Debug)]
pub(crate) struct Unique(pub(crate) RedisConnection);

#[async_trait]
impl Scheme for Unique {
    fn name(&self) -> &'static str {
        "redis-unique"
    }

    fn flaw(&self) -> &'static str {
        "a token by INCR repeats after a failover or a restart without data"
    }

    fn nodes(&self) -> &[RedisConnection] {
        std::slice::from_ref(&self.0)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Option<u64>> {
        let key = redis_key(&claim.key);
        let arguments = [claim.owner.to_string(), millis(claim.ttl).to_string()];
        self.0.script(SET_UNIQUE, &[&key, &format!("{key}:token")], &arguments).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        let owner = [claim.owner.to_string()];
        self.0.script(COMPARE_AND_DELETE, &[&redis_key(&claim.key)], &owner).await
    }
}

/// A hash with a count per owner, renewed by a watchdog, with a message that wakes the waiters.
/// **Wrong:** the token as in 5, a retry after a lost response counts twice, and the watchdog
/// renews also while no response arrives.
#[derive(Debug)]
pub(crate) struct Watchdog(pub(crate) RedisConnection);

#[async_trait]
impl Scheme for Watchdog {
    fn name(&self) -> &'static str {
        "redis-watchdog"
    }

    fn flaw(&self) -> &'static str {
        "as redis-unique; a retry counts twice, and the watchdog renews blindly"
    }

    fn nodes(&self) -> &[RedisConnection] {
        std::slice::from_ref(&self.0)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Option<u64>> {
        let key = redis_key(&claim.key);
        let arguments = [claim.owner.to_string(), millis(claim.ttl).to_string()];
        self.0.script(COUNT_UP, &[&key, &format!("{key}:token")], &arguments).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.0.script(COUNT_DOWN, &[&redis_key(&claim.key)], &[claim.owner.to_string()]).await
    }

    async fn renew(&self, claim: &Claim) -> Result<bool> {
        let arguments = [claim.owner.to_string(), millis(claim.ttl).to_string()];
        self.0.script(EXTEND, &[&redis_key(&claim.key)], &arguments).await
    }

    /// Waits for a message, or until the holder's lease ends. There is no other recheck.
    async fn until_free(&self, claim: &Claim) {
        let Ok(mut subscription) = self.0.subscribe(&redis_key(&claim.key)).await else { return };
        let left = match key_state(&self.0, &claim.key).await {
            Ok(KeyState::Expires(left)) => left,
            Ok(KeyState::Unlimited) => claim.ttl,
            Ok(KeyState::Free) | Err(_) => return,
        };
        let message = async { subscription.on_message().next().await };
        // When the subscription breaks its stream just ends, and this scheme does not notice.
        let woken = async {
            if message.await.is_none() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = woken => {}
            () = tokio::time::sleep(left + Duration::from_millis(1)) => {}
        }
    }
}
