//! Releases a lock, or removes a queue entry, by mode.

use std::sync::Arc;

use super::ModeState;
use super::connection::pool::Pool;
use super::layout::registry;
use super::lease;
use super::row;
use crate::backend::Claim;
use crate::error::Result;

/// Returns whether the claim held the lock until now.
pub(super) async fn release(pool: &Arc<Pool>, mode: &ModeState, claim: &Claim) -> Result<bool> {
    match mode {
        ModeState::Lease => lease::release::release(pool, claim).await,
        ModeState::Session(locks) => release_with_registry(pool, claim, locks.release(claim)).await,
        ModeState::Row(locks) => {
            release_with_registry(pool, claim, row::release::release(locks, claim)).await
        }
    }
}

/// Releases the server's own lock, which also removes the holder from the registry. A claim that
/// did not hold the lock may have a queue entry there.
async fn release_with_registry(
    pool: &Arc<Pool>,
    claim: &Claim,
    release: impl Future<Output = Result<bool>>,
) -> Result<bool> {
    pool.push.unregister(claim.owner);
    let was_held = release.await?;
    if !was_held {
        registry::remove_claim(pool, &claim.key, claim.owner).await?;
    }
    Ok(was_held)
}
