//! Scheme 2: `SETNX` with the time of expiry as the value, `GETSET` to take over.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use redis::cmd;
use tenure::backend::Claim;
use tenure::{Key, Result};

use super::classical::Scheme;
use super::wire::Wire;
use super::{millis, name};

/// The value is when the lock ends, on the clock of whoever took it. **Wrong:** the clients' clocks
/// decide, `DEL` deletes whoever holds the lock by then, and `GETSET` changes the expiry of a lock
/// that it did not win.
#[derive(Debug)]
pub(crate) struct Getset(pub(crate) Wire);

#[async_trait]
impl Scheme for Getset {
    fn name(&self) -> &'static str {
        "redis-getset"
    }

    fn flaw(&self) -> &'static str {
        "the clocks of the clients decide who holds it, and DEL deletes anybody's lock"
    }

    fn nodes(&self) -> &[Wire] {
        std::slice::from_ref(&self.0)
    }

    async fn take(&self, claim: &Claim) -> Result<Option<u64>> {
        let (key, now) = (name(&claim.key), wall_ms());
        let end = (now + millis(claim.ttl)).to_string();
        if self.0.ask::<bool>(cmd("SETNX").arg(&key).arg(&end)).await? {
            return Ok(Some(1));
        }
        let seen: Option<String> = self.0.ask(cmd("GET").arg(&key)).await?;
        if !over(seen.as_deref(), now) {
            return Ok(None);
        }
        let before: Option<String> = self.0.ask(cmd("GETSET").arg(&key).arg(&end)).await?;
        Ok(over(before.as_deref(), now).then_some(1))
    }

    async fn look(&self, key: &Key) -> Result<Option<Option<Duration>>> {
        let seen: Option<u64> = self.0.ask(cmd("GET").arg(name(key))).await?;
        let left = seen.map(|end| end.saturating_sub(wall_ms())).filter(|left| *left > 0);
        Ok(left.map(|left| Some(Duration::from_millis(left))))
    }
}

fn over(end: Option<&str>, now: u64) -> bool {
    end.and_then(|end| end.parse::<u64>().ok()).is_none_or(|end| end < now)
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    millis(since)
}
