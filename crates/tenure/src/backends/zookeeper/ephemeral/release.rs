//! Release with `layout=ephemeral`: deletes the lock only together with the holder's own node.
//!
//! The name of the lock is the same for every holder. One transaction deletes the holder's node of
//! this claim and the lock, or neither: if another client holds the lock by now, the holder's node
//! of this claim does not exist, and the lock stays.
//!
//! The exception: if the lock was deleted by hand and another client acquired it, the holder's node
//! is still there, and the release of the old holder deletes the new lock, until the next renewal
//! of the old holder finds the loss. `tenure evict` deletes both nodes, and has no such gap.

use zookeeper_client::{Error as ClientError, MultiWriteError};

use super::super::claims::TrackedState;
use super::super::connection::session::Session;
use super::super::{error, nodes};
use super::{LockNodes, find_waiter_node};
use crate::backend::Claim;
use crate::error::Result;

/// Deletes the nodes of the claim. `true` if it was held.
pub(crate) async fn release(session: &Session, claim: &Claim) -> Result<bool> {
    let client = session.client();
    let nodes = LockNodes::of(session, claim);
    let waiter_node = match session.claims.state(claim) {
        None if !claim.unconfirmed => return Ok(false),
        None | Some(TrackedState::Requested) => find_waiter_node(session, &nodes).await?,
        Some(TrackedState::Queued { node, .. }) => Some(node.path),
        Some(TrackedState::Held(_)) => None,
    };
    // Also for a waiter: a request without a response may have acquired the lock.
    let held = delete_pair(session, &nodes.hold, &nodes.lock).await?;
    if let Some(waiter_node) = waiter_node {
        nodes::was_deleted(client.delete(&waiter_node, None).await)?;
    }
    if !held {
        // The lock may have been deleted by hand, without the holder's node.
        nodes::was_deleted(client.delete(&nodes.hold, None).await)?;
    }
    session.claims.remove(claim);
    Ok(held)
}

/// Deletes the lock and a holder's node. `false` if one of them does not exist: then neither is
/// deleted.
pub(crate) async fn delete_pair(session: &Session, hold: &str, lock: &str) -> Result<bool> {
    let client = session.client();
    let mut writer = client.new_multi_writer();
    writer.add_delete(hold, None).map_err(error::from_client)?;
    writer.add_delete(lock, None).map_err(error::from_client)?;
    match writer.commit().await {
        Ok(_) => Ok(true),
        Err(MultiWriteError::OperationFailed { source: ClientError::NoNode, .. }) => Ok(false),
        Err(error) => Err(error::from_client(error.into())),
    }
}
