//! Waiting: each waiter watches one node, so that a release wakes those that it lets in, however
//! long the queue is. `queue/wait.rs` says which node.
//!
//! A watch is set by a read of the node (`getData`), so that setting it also shows whether the node
//! still exists: one that was deleted before the watch is noticed, and no wake-up is lost. `exists`
//! would do so too, but leaves a watch at the server on a node that does not exist.
//!
//! The server sends one event when the node changes or is deleted, by its owner or with its
//! session. The waiter then notes in `claims` that the node is not in its way any more. If nothing
//! else was, the next `try_acquire` needs only a proof of the waiter's own node; otherwise it lists
//! the nodes again.
//!
//! Watches belong to a connection: when the session moves to another server, the wait ends, and the
//! core calls again. These functions are hints: they may return early or late, and decide nothing.
//! A grant is never returned from here, because the next request has to prove node and session by a
//! majority.

use zookeeper_client::{Error as ClientError, EventType};

use super::claims::{Awaited, TrackedState};
use super::config::Layout;
use super::connection::session::Session;
use super::layout::node_data;
use super::queue;
use crate::backend::Claim;

/// Returns when it is worth trying to acquire again.
pub(super) async fn until_free(session: &Session, layout: Layout, claim: &Claim) {
    match layout {
        Layout::Queue => queue::wait::until_free(session, claim).await,
        Layout::Ephemeral => until_ephemeral_free(session, claim).await,
    }
}

async fn until_ephemeral_free(session: &Session, claim: &Claim) {
    match session.claims.state(claim) {
        Some(TrackedState::Queued { awaits: Awaited::Node { path, .. }, .. }) => {
            if until_deleted(session, &path).await {
                session.claims.node_ended(claim, &path);
            }
        }
        Some(_) => {}
        None => {
            let lock = session.tree.key(&claim.key);
            // A server that lags behind could show the lock as free.
            if session.client().sync(&lock).await.is_ok() {
                until_deleted(session, &lock).await;
            }
        }
    }
}

/// Returns when the claim may be lost: its node was deleted, or its session ended.
pub(super) async fn until_lost(session: &Session, claim: &Claim) {
    if let Some(TrackedState::Held(node)) = session.claims.state(claim) {
        until_deleted(session, &node.path).await;
    }
}

/// Watches a node. `true` if it does not exist any more, `false` if that is not known: the session
/// ended or moved, or the server did not respond.
pub(super) async fn until_deleted(session: &Session, path: &str) -> bool {
    until_ended(session, path, |_| false).await
}

/// Watches a node until it is deleted, or its data have a mark: others need not wait for it then.
pub(super) async fn until_marked(session: &Session, path: &str) -> bool {
    until_ended(session, path, |data| node_data::decode(data).mark.is_some()).await
}

async fn until_ended(session: &Session, path: &str, ends: impl Fn(&[u8]) -> bool) -> bool {
    let client = session.client();
    loop {
        let watcher = match client.get_and_watch_data(path).await {
            Ok((data, _, _)) if ends(&data) => return true,
            Ok((_, _, watcher)) => watcher,
            Err(ClientError::NoNode) => return true,
            Err(_) => return false,
        };
        let changed = tokio::select! {
            changed = watcher.changed() => changed,
            // The watch is at the server that the session has left.
            () = session.until_moved(&client) => return false,
        };
        match changed.event_type {
            EventType::NodeDeleted => return true,
            EventType::Session => return false,
            // The data changed: a mark, or Curator's request of a revocation.
            _ => {}
        }
        // Without a watch, which would be removed by another request if this is the end.
        match client.get_data(path).await {
            Ok((data, _)) if ends(&data) => return true,
            Ok(_) => {}
            Err(ClientError::NoNode) => return true,
            Err(_) => return false,
        }
    }
}
