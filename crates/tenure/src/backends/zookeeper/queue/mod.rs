//! `layout=queue`: Curator's. Each claim has an ephemeral sequential node below the node of the
//! key, and those hold that fit beside all before them: an exclusive claim if it is the first.

pub(super) mod acquire;
pub(super) mod downgrade;
pub(super) mod order;
pub(super) mod release;
pub(super) mod renew;
pub(super) mod wait;

use super::connection::session::Session;
use super::nodes;
use crate::backend::Claim;
use crate::error::Result;

/// Finds a node of this claim that a request without a response may have created.
async fn find_node(session: &Session, claim: &Claim) -> Result<Option<String>> {
    let parent = session.tree.key(&claim.key);
    let children = nodes::synced_children(session, &parent).await?;
    let prefix = session.node_prefix(claim.owner);
    let own = children.into_iter().find(|child| child.starts_with(&prefix));
    Ok(own.map(|child| format!("{parent}/{child}")))
}
