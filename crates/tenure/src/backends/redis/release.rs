//! Releasing a held lock, and cancelling a claim that waits or whose outcome is unknown.
//!
//! **State.** One script (`lua/release.lua`) removes all traces of an owner: the lock key, if it
//! holds that; its queue entry, if it has one. It hands the lock to the next waiter in the same
//! step. It compares the owner first, so that it never touches another one.
//!
//! **The late request.** A client that got no response to an acquire does not know whether the
//! request is lost or only slow. It may sit in a socket buffer of a connection that was replaced,
//! or before a server that hangs, and arrive *after* the release that follows it on another
//! connection. It would then acquire a lock for a claim that no client knows of any more, and
//! it would stay until its lease ends.
//!
//! **The invariant.** So a release of such a claim (`claim.unconfirmed`) leaves a tombstone, a key
//! that names the owner, in the same script; `lua/acquire.lua` refuses an owner with a tombstone.
//! Owners are never used twice, so that a tombstone refuses no other claim. A claim whose requests
//! all got their responses needs none: after the last one, no request is on its way.
//!
//! How long it stays has nothing to do with the ttl of the claim, but with how late a request can
//! arrive: see [`TOMBSTONE_MIN`].

use std::time::Duration;

use redis::Value;

use super::Redis;
use super::layout::Keys;
use super::layout::response::unexpected;
use crate::backend::Claim;
use crate::error::Result;

/// How late a request can arrive, and for how long its tombstone refuses it at least. A kernel goes
/// on sending for ten seconds what a cut network holds up (`UNACKNOWLEDGED_MS` in `dial`), and a
/// server that hung finds requests of old connections beside the release.
const TOMBSTONE_MIN: Duration = Duration::from_secs(60);

/// Releases or cancels. `true` if the claim held the lock until now.
pub(super) async fn release(redis: &Redis, claim: &Claim) -> Result<bool> {
    redis.push.unregister(claim.owner);
    let tombstone_ttl =
        if claim.unconfirmed { claim.ttl.max(TOMBSTONE_MIN) } else { Duration::ZERO };
    with_tombstone(redis, claim, tombstone_ttl).await
}

/// Releases or cancels, and leaves a tombstone for so long; none if that is zero.
pub(super) async fn with_tombstone(
    redis: &Redis,
    claim: &Claim,
    tombstone_ttl: Duration,
) -> Result<bool> {
    let keys = Keys::of(claim.key.as_str());
    let call = redis.scripts.release(keys, claim, tombstone_ttl);
    let connection = redis.servers.connection(keys.lock).await?;
    match redis.servers.run_on(connection.clone(), keys.lock, &call).await {
        Ok((response, _)) => was_held(&response),
        // A connection that was killed while it was idle is often noticed only now, so the release
        // is sent once more. If the lock is free by then, the first one may have done it.
        Err(error) if connection.is_broken() => {
            let response = redis.servers.run(keys.lock, &call).await?;
            if was_held(&response)? { Ok(true) } else { Err(error) }
        }
        Err(error) => Err(error),
    }
}

fn was_held(response: &Value) -> Result<bool> {
    match response {
        Value::Int(released) => Ok(*released == 2),
        other => Err(unexpected("release", other)),
    }
}
