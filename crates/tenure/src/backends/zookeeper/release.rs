//! Release, by the layout of the URL, and the repetition of releases that failed.
//!
//! The node of a claim lives as long as its session, and the pings of the client library keep that
//! alive, whatever becomes of the claims. A node that a failed release left behind would therefore
//! block its key for as long as the process runs. So each session remembers its claims until their
//! release is confirmed (`claims`), and a task of the backend releases those that the engine has
//! given up: a claim whose release was not repeated for a ttl, or that was neither requested nor
//! renewed for two.

use std::sync::Weak;
use std::time::Duration;

use super::config::Layout;
use super::connection::{CallKind, SessionPool};
use super::{ephemeral, queue};
use crate::backend::Claim;
use crate::error::Result;

/// The pause between two searches for abandoned claims.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// Deletes the nodes of the claim. If its session has ended, the server has deleted them.
pub(super) async fn release(sessions: &SessionPool, claim: &Claim) -> Result<bool> {
    let session = sessions.of(claim);
    if session.has_ended() {
        return Ok(false);
    }
    session.claims.begin_release(claim);
    let requests = async {
        match sessions.config.layout {
            Layout::Queue => queue::release::release(&session, claim).await,
            Layout::Ephemeral => ephemeral::release::release(&session, claim).await,
        }
    };
    match sessions.call(&session, CallKind::Release, requests).await {
        Err(_) if session.has_ended() => Ok(false),
        result => result,
    }
}

/// Releases abandoned claims and closes idle sessions from time to time, as long as the backend
/// exists.
pub(super) async fn sweep(sessions: Weak<SessionPool>) {
    loop {
        tokio::time::sleep(SWEEP_PAUSE).await;
        let Some(sessions) = sessions.upgrade() else { return };
        let all = sessions.all();
        let abandoned: Vec<_> = all.iter().flat_map(|session| session.claims.abandoned()).collect();
        drop(all);
        for claim in abandoned {
            // If it fails, the claim stays abandoned, and the next sweep repeats it.
            let _ignored = release(&sessions, &claim).await;
        }
        sessions.close_idle();
    }
}
