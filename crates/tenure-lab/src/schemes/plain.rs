//! Schemes 1, 3 and 4: a key whose value says nothing about its owner, deleted by whoever thinks
//! that it is done.

use async_trait::async_trait;
use redis::cmd;
use tenure::Result;
use tenure::backend::Claim;

use super::classical::Scheme;
use super::wire::Wire;
use super::{millis, name};

/// `SETNX`, then `EXPIRE`. **Wrong:** a crash between the two leaves a key that never ends, and
/// `DEL` deletes whoever holds the lock by then.
#[derive(Debug)]
pub(crate) struct SetnxExpire(pub(crate) Wire);

#[async_trait]
impl Scheme for SetnxExpire {
    fn name(&self) -> &'static str {
        "redis-setnx-expire"
    }

    fn flaw(&self) -> &'static str {
        "a crash between SETNX and EXPIRE locks for ever, and DEL deletes anybody's lock"
    }

    fn nodes(&self) -> &[Wire] {
        std::slice::from_ref(&self.0)
    }

    async fn take(&self, claim: &Claim) -> Result<Option<u64>> {
        let key = name(&claim.key);
        if !self.0.ask::<bool>(cmd("SETNX").arg(&key).arg("locked")).await? {
            return Ok(None);
        }
        self.0.ask::<bool>(cmd("PEXPIRE").arg(&key).arg(millis(claim.ttl))).await?;
        Ok(Some(1))
    }
}

/// `SETNX` and `EXPIRE` in one script. **Wrong:** `DEL` deletes whoever holds the lock by then.
#[derive(Debug)]
pub(crate) struct Scripted(pub(crate) Wire);

#[async_trait]
impl Scheme for Scripted {
    fn name(&self) -> &'static str {
        "redis-script"
    }

    fn flaw(&self) -> &'static str {
        "DEL deletes anybody's lock"
    }

    fn nodes(&self) -> &[Wire] {
        std::slice::from_ref(&self.0)
    }

    async fn take(&self, claim: &Claim) -> Result<Option<u64>> {
        const TAKE: &str = "if redis.call('SETNX', KEYS[1], 'locked') == 1 then
            redis.call('PEXPIRE', KEYS[1], ARGV[1]) return 1 end return 0";
        let arguments = [millis(claim.ttl).to_string()];
        let taken: bool = self.0.script(TAKE, &[&name(&claim.key)], &arguments).await?;
        Ok(taken.then_some(1))
    }
}

/// `SET … NX PX`. **Wrong:** `DEL` deletes whoever holds the lock by then.
#[derive(Debug)]
pub(crate) struct SetNx(pub(crate) Wire);

#[async_trait]
impl Scheme for SetNx {
    fn name(&self) -> &'static str {
        "redis-set-nx"
    }

    fn flaw(&self) -> &'static str {
        "DEL deletes anybody's lock"
    }

    fn nodes(&self) -> &[Wire] {
        std::slice::from_ref(&self.0)
    }

    async fn take(&self, claim: &Claim) -> Result<Option<u64>> {
        let mut set = cmd("SET");
        set.arg(name(&claim.key)).arg("locked").arg("NX").arg("PX").arg(millis(claim.ttl));
        Ok(self.0.ask::<Option<String>>(&set).await?.map(|_| 1))
    }
}
