//! Releasing, by mode, and waking the next holder. How late requests of a released claim are
//! prevented stands in `lease::release`.

use super::{Context, ServerLocks, lease, row, session};
use crate::backend::Claim;
use crate::error::Result;

pub(super) async fn release(context: &Context, claim: &Claim) -> Result<bool> {
    let tables = &context.tables;
    let released = match &context.server_locks {
        ServerLocks::None => lease::release::release(tables, claim).await,
        ServerLocks::Named(locks) => session::release::release(locks, tables, claim).await,
        ServerLocks::Row(locks) => {
            // Two connections, so both at the same time: the next holder finds the row free, or
            // tries again a little later.
            let end = row::release::end_transaction(locks, &claim.key, claim.owner, claim.ttl);
            tokio::join!(lease::release::release(tables, claim), end).0
        }
    }?;
    context.waiters.wake(&released.wake, claim.ttl).await;
    Ok(released.was_held)
}
