//! Waiting: each waiter watches one node, the one just before its own, so that a release wakes one
//! waiter, however long the queue is.
//!
//! A watch is set by a read of the node (`getData`), so that setting it also shows whether the node
//! still exists: a predecessor that was deleted before the watch is noticed, and no wake-up is
//! lost. `exists` would do so too, but leaves a watch at the server on a node that does not exist.
//!
//! The server sends one event when the node is deleted, by its owner or with its session. The
//! waiter then notes in `claims` that its predecessor is gone. If that was the holder, the next
//! `try_acquire` needs only a proof of the waiter's own node; otherwise it reads the queue again.
//!
//! Watches belong to a connection: when the session moves to another server, the wait ends, and the
//! core calls again. These functions are hints: they may return early or late, and decide nothing.
//! A grant is never returned from here, because the next request has to prove node and session by a
//! majority.

use zookeeper_client::{Error as ClientError, EventType};

use super::claims::TrackedState;
use super::config::Layout;
use super::connection::session::Session;
use super::layout;
use crate::backend::Claim;

/// Returns when it is worth trying to acquire again.
pub(super) async fn until_free(session: &Session, layout: Layout, claim: &Claim) {
    let client = session.client();
    match (session.claims.state(claim), layout) {
        (Some(TrackedState::Queued { predecessor, .. }), _) if !predecessor.path.is_empty() => {
            if until_deleted(session, &predecessor.path).await {
                session.claims.predecessor_deleted(claim, &predecessor.path);
            }
        }
        (Some(_), _) => {}
        (None, Layout::Queue) => until_empty(session, claim).await,
        (None, Layout::Ephemeral) => {
            let lock = session.tree.key(&claim.key);
            // A server that lags behind could show the lock as free.
            if client.sync(&lock).await.is_ok() {
                until_deleted(session, &lock).await;
            }
        }
    }
}

/// Returns when no claim holds or waits. Watches the last node of the queue: the lock cannot be
/// free before that is deleted.
async fn until_empty(session: &Session, claim: &Claim) {
    let client = session.client();
    let parent = session.tree.key(&claim.key);
    loop {
        let sync = client.sync(&parent);
        let children = client.list_children(&parent);
        let (Ok(()), Ok(mut children)) = tokio::join!(sync, children) else { return };
        layout::sort(&mut children);
        let Some(last) = children.last() else { return };
        if !until_deleted(session, &format!("{parent}/{last}")).await {
            return;
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
async fn until_deleted(session: &Session, path: &str) -> bool {
    let client = session.client();
    loop {
        let watcher = match client.get_and_watch_data(path).await {
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
            // The data changed: Curator requests the revocation of a lock so. Watch again.
            _ => {}
        }
    }
}
