//! Schemes 5 and 6: the value or field says who owns the lock, and only the owner deletes it.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use tenure::Result;
use tenure::backend::Claim;

use super::classical::Scheme;
use super::wire::Wire;
use super::{left, millis, name};

/// A unique value, an atomic compare-and-delete, and a counter for the token. **Wrong:** the
/// counter goes back when the server forgets, so that two holders can have the same token.
#[derive(Debug)]
pub(crate) struct Unique(pub(crate) Wire);

#[async_trait]
impl Scheme for Unique {
    fn name(&self) -> &'static str {
        "redis-unique"
    }

    fn flaw(&self) -> &'static str {
        "a token by INCR repeats after a failover or a restart without data"
    }

    fn nodes(&self) -> &[Wire] {
        std::slice::from_ref(&self.0)
    }

    async fn take(&self, claim: &Claim) -> Result<Option<u64>> {
        const TAKE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
            return redis.call('INCR', KEYS[2]) end return false";
        let key = name(&claim.key);
        let arguments = [claim.owner.to_string(), millis(claim.ttl).to_string()];
        self.0.script(TAKE, &[&key, &format!("{key}:token")], &arguments).await
    }

    async fn give(&self, claim: &Claim) -> Result<bool> {
        let owner = [claim.owner.to_string()];
        self.0.script(COMPARE_AND_DELETE, &[&name(&claim.key)], &owner).await
    }
}

/// A hash with a count per owner, renewed by a watchdog, woken by a message. **Wrong:** the token
/// as in 5, a retry after a lost answer counts twice, and the watchdog renews without looking
/// whether anybody hears its answers.
#[derive(Debug)]
pub(crate) struct Watchdog(pub(crate) Wire);

#[async_trait]
impl Scheme for Watchdog {
    fn name(&self) -> &'static str {
        "redis-watchdog"
    }

    fn flaw(&self) -> &'static str {
        "as redis-unique; a retry counts twice, and the watchdog renews blindly"
    }

    fn nodes(&self) -> &[Wire] {
        std::slice::from_ref(&self.0)
    }

    async fn take(&self, claim: &Claim) -> Result<Option<u64>> {
        const TAKE: &str = "
            local mine = redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1
            if redis.call('EXISTS', KEYS[1]) == 1 and not mine then return false end
            redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
            redis.call('PEXPIRE', KEYS[1], ARGV[2])
            if mine then return tonumber(redis.call('GET', KEYS[2])) end
            return redis.call('INCR', KEYS[2])";
        let key = name(&claim.key);
        let arguments = [claim.owner.to_string(), millis(claim.ttl).to_string()];
        self.0.script(TAKE, &[&key, &format!("{key}:token")], &arguments).await
    }

    async fn give(&self, claim: &Claim) -> Result<bool> {
        const GIVE: &str = "
            if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
            if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then return 1 end
            redis.call('DEL', KEYS[1])
            redis.call('PUBLISH', KEYS[1], 'free')
            return 1";
        self.0.script(GIVE, &[&name(&claim.key)], &[claim.owner.to_string()]).await
    }

    async fn extend(&self, claim: &Claim) -> Result<bool> {
        const EXTEND: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
            return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
        let arguments = [claim.owner.to_string(), millis(claim.ttl).to_string()];
        self.0.script(EXTEND, &[&name(&claim.key)], &arguments).await
    }

    /// Until a message comes, or until the lease ends that is in the way: no other look.
    async fn wait(&self, claim: &Claim) {
        let Ok(mut heard) = self.0.listen(&name(&claim.key)).await else { return };
        let Ok(Some(left)) = left(&self.0, &claim.key).await else { return };
        let message = async { heard.on_message().next().await };
        let end = left.unwrap_or(claim.ttl) + Duration::from_millis(1);
        // A subscription that broke wakes nobody: the stream just ends, and nobody looks.
        let awake = async {
            if message.await.is_none() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = awake => {}
            () = tokio::time::sleep(end) => {}
        }
    }
}

pub(super) const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
