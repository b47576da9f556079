//! Waiting. One waiter watches one node: the one before its own, so that a release wakes one.

use zookeeper_client::{Error as ClientError, EventType};

use super::names;
use super::session::{Session, Spot};
use super::settings::Layout;
use crate::backend::Claim;

/// Returns when it is worth asking again.
pub(super) async fn until_free(session: &Session, layout: Layout, claim: &Claim) {
    let client = session.client();
    match (session.spot(claim), layout) {
        (Some(Spot::Queued { ahead, .. }), _) if !ahead.node.is_empty() => {
            if until_deleted(session, &ahead.node).await {
                session.moved_up(claim, &ahead.node);
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

/// Returns when nobody holds or waits. Watches the last in the queue: the lock cannot be free
/// before that one is gone.
async fn until_empty(session: &Session, claim: &Claim) {
    let client = session.client();
    let parent = session.tree.key(&claim.key);
    loop {
        let sync = client.sync(&parent);
        let children = client.list_children(&parent);
        let (Ok(()), Ok(mut children)) = tokio::join!(sync, children) else { return };
        names::sort(&mut children);
        let Some(last) = children.last() else { return };
        if !until_deleted(session, &format!("{parent}/{last}")).await {
            return;
        }
    }
}

/// Returns when the claim may be gone: its node is, or its session.
pub(super) async fn until_lost(session: &Session, claim: &Claim) {
    if let Some(Spot::Held(place)) = session.spot(claim) {
        until_deleted(session, &place.node).await;
    }
}

/// Sets a watch, which also looks, and waits. `true` if the node is gone, `false` if that is not
/// known: the session ended or the server did not answer.
async fn until_deleted(session: &Session, node: &str) -> bool {
    let client = session.client();
    loop {
        // Not `exists`, which would leave a watch on a node that is not there.
        let watcher = match client.get_and_watch_data(node).await {
            Ok((_, _, watcher)) => watcher,
            Err(ClientError::NoNode) => return true,
            Err(_) => return false,
        };
        let changed = tokio::select! {
            changed = watcher.changed() => changed,
            // The server that has the watch was left.
            () = session.until_moved(&client) => return false,
        };
        match changed.event_type {
            EventType::NodeDeleted => return true,
            EventType::Session => return false,
            // Curator asks for a lock by writing into its node. Others wait on.
            _ => {}
        }
    }
}
