//! Release with `layout=queue`: deletes the node of the claim, whether it holds or waits.
//!
//! The name of a node contains claim and session, so that a release never deletes the node of
//! another claim. No tombstone is needed against late requests: ZooKeeper carries out the requests
//! of a session in their order, and refuses those of a connection that the session has left. What
//! could not be deleted stays in `claims`, and is deleted later (`release` of the backend).

use super::super::claims::TrackedState;
use super::super::connection::session::Session;
use super::super::nodes;
use super::find_node;
use crate::backend::Claim;
use crate::error::Result;

/// Deletes the node of the claim. `true` if the claim was held.
pub(crate) async fn release(session: &Session, claim: &Claim) -> Result<bool> {
    let client = session.client();
    let (path, held) = match session.claims.state(claim) {
        None if !claim.unconfirmed => return Ok(false),
        None | Some(TrackedState::Requested) => match find_node(session, claim).await? {
            Some(path) => (path, false),
            None => {
                session.claims.remove(claim);
                return Ok(false);
            }
        },
        Some(TrackedState::Queued { node, .. }) => (node.path, false),
        Some(TrackedState::Held(node)) => (node.path, true),
    };
    let existed = nodes::was_deleted(client.delete(&path, None).await)?;
    session.claims.remove(claim);
    Ok(existed && held)
}
