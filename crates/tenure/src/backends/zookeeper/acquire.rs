//! Acquire, by the layout of the URL: `queue/acquire.rs` and `ephemeral/acquire.rs` have the
//! protocols.

use super::config::Layout;
use super::connection::{CallKind, SessionPool};
use super::{ephemeral, queue};
use crate::backend::{Attempt, Claim, Grant, LostReason};
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

/// Acquires the lock, or says who holds it. With a token it is a downgrade of that grant.
pub(super) async fn try_acquire(sessions: &SessionPool, claim: &Claim) -> Result<Attempt<Grant>> {
    if let Some(token) = claim.token {
        return downgrade(sessions, claim, token).await.map(Attempt::Granted);
    }
    let session = sessions.alive_for(claim).await?;
    let requests = async {
        match sessions.config.layout {
            Layout::Queue => queue::acquire::try_acquire(&session, claim).await,
            Layout::Ephemeral => ephemeral::acquire::try_acquire(&session, claim).await,
        }
    };
    sessions.call(&session, CallKind::Acquire, requests).await
}

/// Opens no session: what is not held in the current one is not held at all.
async fn downgrade(sessions: &SessionPool, claim: &Claim, token: FencingToken) -> Result<Grant> {
    let session = sessions.of(claim);
    let gone = || Error::gone(LostReason::SessionGone);
    if session.has_ended() {
        return Err(gone());
    }
    let request = queue::downgrade::downgrade(&session, claim, token);
    match sessions.call(&session, CallKind::Renew, request).await {
        Err(error) if error.kind() == ErrorKind::Unavailable && session.has_ended() => Err(gone()),
        result => result,
    }
}
