//! `layout=ephemeral`: the claim that creates the node of the key holds. Beside it, in the
//! companion container, holder and waiters have nodes of their own.

pub(super) mod acquire;
pub(super) mod release;
pub(super) mod renew;

use super::connection::session::Session;
use super::{layout, nodes};
use crate::backend::Claim;
use crate::error::Result;

/// The paths of the nodes of a claim.
struct LockNodes {
    lock: String,
    companion: String,
    /// The holder's node in the companion.
    hold: String,
    /// The name of the waiter's node in the companion, without its sequence number.
    wait: String,
}

impl LockNodes {
    fn of(session: &Session, claim: &Claim) -> LockNodes {
        let lock = session.tree.key(&claim.key);
        let companion = layout::companion(&lock);
        let prefix = session.node_prefix(claim.owner);
        let hold = format!("{companion}/{prefix}{}", layout::HOLD);
        let wait = format!("{prefix}{}", layout::WAIT);
        LockNodes { lock, companion, hold, wait }
    }
}

/// Finds a waiter's node of this claim that a request without a response may have created.
async fn find_waiter_node(session: &Session, nodes: &LockNodes) -> Result<Option<String>> {
    let children = nodes::synced_children(session, &nodes.companion).await?;
    let own = children.into_iter().find(|child| child.starts_with(&nodes.wait));
    Ok(own.map(|child| format!("{}/{child}", nodes.companion)))
}
