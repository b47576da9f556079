//! Acquire with `layout=queue`: creates the node of the claim, and finds its rank.
//!
//! State at the server: the node of the key is a container, whose children are the nodes of the
//! claims. A child is ephemeral: the server deletes it with its session. It is sequential: the
//! server appends a number that grows with every child of this parent. All children count, those of
//! Curator and other clients included, sorted as Curator does.
//!
//! Invariant: the claim whose node is the first in that order holds the lock. Among Curator's names
//! a new node is never before another: its number is higher. So a claim only moves up, when nodes
//! before its own are deleted: by their owners, by the end of their sessions, or by an operator.
//!
//! The token is the czxid of the node, the id of the transaction that created it, times 1024. It
//! grows over everything the ensemble does. The sequence does not: it starts again at 0 when the
//! server deletes an empty container.
//!
//! The races:
//! - *A lost response to the create.* A second node of the same claim would wait for the first one
//!   for ever. Therefore a claim with an unknown outcome first searches for a node with its prefix,
//!   after a `sync`, because the session may be at a server by now that lags behind.
//! - *A server that is cut off.* It goes on responding to reads, while the majority may have ended
//!   the session and granted the lock to another claim. Therefore a grant after waiting is proven
//!   by a write, a transaction that only checks that the node exists.
//! - *A list that is older than the node.* Create and list, and proof and list, are sent on one
//!   connection in this order, and ZooKeeper responds in this order: the list contains what the
//!   first request showed.
//! - *The container is deleted* by the server when it is empty: it is created again.

use zookeeper_client::{CreateMode, Error as ClientError};

use super::super::claims::{ClaimNode, PredecessorNode, TrackedState};
use super::super::connection::session::Session;
use super::super::layout::{self, node_data};
use super::super::{error, nodes};
use super::find_node;
use crate::backend::{Attempt, Busy, Claim, Grant};
use crate::error::{Error, ErrorKind, Result};

/// How often to retry when the server deletes the empty container before the node is created.
const CREATE_TRIES_MAX: usize = 5;

/// Creates the node of the claim, or finds how far an existing one has come.
pub(crate) async fn try_acquire(session: &Session, claim: &Claim) -> Result<Attempt<Grant>> {
    let node = match session.claims.state(claim) {
        None if !claim.unconfirmed => None,
        None | Some(TrackedState::Requested) => find_claim_node(session, claim).await?,
        Some(TrackedState::Queued { node, predecessor })
            if predecessor.deleted && predecessor.holds =>
        {
            return acquire_as_next(session, claim, node).await;
        }
        Some(TrackedState::Queued { node, .. } | TrackedState::Held(node)) => Some(node),
    };
    if let Some(node) = node
        && let Some(attempt) = recheck(session, claim, node).await?
    {
        return Ok(attempt);
    }
    create(session, claim).await
}

/// A watch has shown that the holder's node, just before this one, was deleted: if this node
/// exists, it is the first. The list of all children, however long, need not be read.
async fn acquire_as_next(
    session: &Session,
    claim: &Claim,
    node: ClaimNode,
) -> Result<Attempt<Grant>> {
    let client = session.client();
    if !session.prove_nodes(&client, &[&node.path]).await? {
        session.claims.remove(claim);
        return create(session, claim).await;
    }
    Ok(granted(session, claim, node))
}

/// Finds the rank of an existing node; `None` if it does not exist any more.
async fn recheck(
    session: &Session,
    claim: &Claim,
    node: ClaimNode,
) -> Result<Option<Attempt<Grant>>> {
    let client = session.client();
    let paths = [node.path.as_str()];
    // Polled in this order, so that they are sent in this order: the list is not older than the
    // proof.
    let proof = session.prove_nodes(&client, &paths);
    let parent = session.tree.key(&claim.key);
    let (proof, children) = tokio::join!(biased; proof, async {
        client.list_children(&parent).await
    });
    if !proof? {
        session.claims.remove(claim);
        return Ok(None);
    }
    let children = children.map_err(error::from_client)?;
    decide(session, claim, node, children).await.map(Some)
}

/// Finds a node of this claim that a request without a response may have created, with its token.
async fn find_claim_node(session: &Session, claim: &Claim) -> Result<Option<ClaimNode>> {
    let client = session.client();
    let Some(path) = find_node(session, claim).await? else { return Ok(None) };
    match client.check_stat(&path).await.map_err(error::from_client)? {
        Some(stat) => Ok(Some(ClaimNode { path, token: layout::token(stat.czxid)? })),
        None => Ok(None),
    }
}

/// Creates the node of the claim and lists all nodes, in one round trip.
async fn create(session: &Session, claim: &Claim) -> Result<Attempt<Grant>> {
    let client = session.client();
    let parent = session.tree.key(&claim.key);
    let prefix = format!("{parent}/{}{}", session.node_prefix(claim.owner), layout::LOCK);
    let data = node_data::encode(&claim.holder_info, session.timeout());
    let options = session.create_options(CreateMode::EphemeralSequential);
    for _ in 0..CREATE_TRIES_MAX {
        session.claims.set(claim, TrackedState::Requested);
        let created = client.create(&prefix, &data, &options);
        let children = client.list_children(&parent);
        let (created, children) = tokio::join!(created, children);
        match created {
            Ok((stat, sequence)) => {
                let path = format!("{prefix}{sequence}");
                let node = ClaimNode { path, token: layout::token(stat.czxid)? };
                // Even if the list failed, the node is known from here on.
                session.claims.set(claim, queued(node.clone(), String::new(), false));
                let children = children.map_err(error::from_client)?;
                return decide(session, claim, node, children).await;
            }
            // The key was never used, or the server has deleted its empty container.
            Err(ClientError::NoNode) => session.create_container(&parent).await?,
            Err(error) => {
                let error = error::from_client(error);
                // Any other kind is a refusal: there is no node.
                if error.kind() != ErrorKind::Unavailable {
                    session.claims.remove(claim);
                }
                return Err(error);
            }
        }
    }
    session.claims.remove(claim);
    Err(error::container_deleted())
}

/// Grants the lock if the node is the first of these. Otherwise notes its predecessor, or deletes
/// the node if the claim does not wait.
async fn decide(
    session: &Session,
    claim: &Claim,
    node: ClaimNode,
    mut children: Vec<String>,
) -> Result<Attempt<Grant>> {
    let client = session.client();
    layout::sort(&mut children);
    let parent = session.tree.key(&claim.key);
    let name = layout::name_of(&node.path);
    let Some(rank) = children.iter().position(|child| child == name) else {
        session.claims.remove(claim);
        let message = "the queue entry was deleted by another client; try again";
        return Err(Error::new(ErrorKind::Unavailable, message));
    };
    if rank == 0 {
        return Ok(granted(session, claim, node));
    }
    let deletion = if claim.waits {
        let predecessor = format!("{parent}/{}", children[rank - 1]);
        session.claims.set(claim, queued(node, predecessor, rank == 1));
        None
    } else {
        // The node exists until the deletion is confirmed.
        session.claims.set(claim, TrackedState::Requested);
        Some(client.delete(&node.path, None))
    };
    // Sent before the response to the deletion came: one round trip for both.
    let first = nodes::read(session, &format!("{parent}/{}", children[0])).await?;
    let holder = first.map(|first| first.holder()).transpose()?;
    if let Some(deletion) = deletion {
        nodes::was_deleted(deletion.await)?;
        session.claims.remove(claim);
    }
    let mut busy = Busy::new(claim.key.clone());
    busy.holder = holder.map(Box::new);
    busy.ahead = claim.waits.then(|| u32::try_from(rank - 1).unwrap_or(u32::MAX));
    Ok(Attempt::Busy(busy))
}

fn granted(session: &Session, claim: &Claim, node: ClaimNode) -> Attempt<Grant> {
    let grant = session.grant(claim, node.token);
    session.claims.set(claim, TrackedState::Held(node));
    Attempt::Granted(grant)
}

fn queued(node: ClaimNode, predecessor: String, holds: bool) -> TrackedState {
    let predecessor = PredecessorNode { path: predecessor, holds, deleted: false };
    TrackedState::Queued { node, predecessor }
}
