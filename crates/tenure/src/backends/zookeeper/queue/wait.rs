//! Waiting with `layout=queue`: which node a claim watches.
//!
//! - *Exclusive*: the node just before its own. It can hold when all before it are gone, and those
//!   behind it watch other nodes: a release wakes at most one of them.
//! - *Shared*: the last node before its own that is not shared, also until that is made shared. So
//!   the readers of a run watch one node, and its end wakes them all, because it lets them all in.
//! - *Permits*: the first waiter watches the children of the key, because the end of any holder can
//!   make it fit. Each other one watches the waiter before it, until that is deleted or marked as
//!   held (`acquire`); then it is the first waiter itself. So one release wakes one waiter, and one
//!   more for each that is let in. The price: the first waiter lists the nodes for every newcomer.
//!
//! A waiter that leaves deletes its node, and so wakes the claim that waits for it.

use zookeeper_client::EventType;

use super::super::claims::{Awaited, ClaimNode, TrackedState};
use super::super::connection::session::Session;
use super::super::layout;
use super::super::wait::{until_deleted, until_marked};
use super::order::{InTheWay, Queue};
use crate::backend::{Claim, Mode};

/// Returns when it is worth trying to acquire again.
pub(crate) async fn until_free(session: &Session, claim: &Claim) {
    match session.claims.state(claim) {
        Some(TrackedState::Queued { node, awaits }) => match (awaits, claim.mode) {
            (Awaited::Node { path, .. }, Mode::Exclusive) => {
                if until_deleted(session, &path).await {
                    session.claims.node_ended(claim, &path);
                }
            }
            (Awaited::Node { path, .. }, Mode::Shared) => {
                if until_marked(session, &path).await {
                    session.claims.node_ended(claim, &path);
                }
            }
            (Awaited::Node { path, .. }, Mode::Permits { .. }) => {
                until_fits(session, claim, &node, Some(path)).await;
            }
            (Awaited::Holders, _) => until_fits(session, claim, &node, None).await,
            (Awaited::Unknown | Awaited::Nothing, _) => {}
        },
        Some(_) => {}
        None => until_empty(session, claim).await,
    }
}

/// Returns when a claim to permits fits beside those before it, and notes that. `waiter` is the
/// node of the waiter before it, if there is one.
async fn until_fits(
    session: &Session,
    claim: &Claim,
    node: &ClaimNode,
    mut waiter: Option<String>,
) {
    let client = session.client();
    let parent = session.tree.key(&claim.key);
    let mut watches = waiter.is_none();
    let mut held = None;
    loop {
        if let Some(path) = waiter.take() {
            if !until_marked(session, &path).await {
                return;
            }
            held = Some(path);
            // It is the first waiter now, and most often does not fit yet.
            watches = true;
        }
        // Subscribe, then check: the list comes with the watch.
        let (children, watcher) = if watches {
            match client.list_and_watch_children(&parent).await {
                Ok((children, watcher)) => (children, Some(watcher)),
                Err(_) => return,
            }
        } else {
            let Ok(children) = client.list_children(&parent).await else { return };
            (children, None)
        };
        let queue = Queue::of(children);
        let Some(rank) = queue.rank(layout::name_of(&node.path)) else { return };
        watches = false;
        match queue.in_the_way(rank, claim.mode, held.as_deref().map(layout::name_of)) {
            InTheWay::Nothing => return session.claims.fits(claim),
            // The waiter before it has left, and there is another one.
            InTheWay::Child { rank, .. } => {
                waiter = Some(format!("{parent}/{}", queue.names()[rank]));
            }
            InTheWay::Holders => match watcher {
                None => watches = true,
                Some(watcher) => {
                    let changed = tokio::select! {
                        changed = watcher.changed() => changed,
                        () = session.until_moved(&client) => return,
                    };
                    if changed.event_type == EventType::Session {
                        return;
                    }
                }
            },
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
