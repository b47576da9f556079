//! Acquire, by the layout of the URL: `queue/acquire.rs` and `ephemeral/acquire.rs` have the
//! protocols.

use super::config::Layout;
use super::connection::{CallKind, SessionPool};
use super::{ephemeral, queue};
use crate::backend::{Attempt, Claim, Grant};
use crate::error::Result;

/// Acquires the lock, or says who holds it.
pub(super) async fn try_acquire(sessions: &SessionPool, claim: &Claim) -> Result<Attempt<Grant>> {
    let session = sessions.alive_for(claim).await?;
    let requests = async {
        match sessions.config.layout {
            Layout::Queue => queue::acquire::try_acquire(&session, claim).await,
            Layout::Ephemeral => ephemeral::acquire::try_acquire(&session, claim).await,
        }
    };
    sessions.call(&session, CallKind::Acquire, requests).await
}
