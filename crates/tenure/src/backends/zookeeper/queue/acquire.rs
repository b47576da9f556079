//! Acquire with `layout=queue`: creates the node of the claim, and finds what is in its way.
//!
//! State at the server: the node of the key is a container, whose children are the nodes of the
//! claims. A child is ephemeral: the server deletes it with its session. It is sequential: the
//! server appends a number that grows with every child of this parent. All children count, those of
//! Curator and other clients included, sorted as Curator does. The mode of a claim is in the name
//! of its node; a foreign name counts as exclusive.
//!
//! Invariant: a claim holds if it fits beside all claims whose nodes are before its own, and each
//! of those fits too (`order`). Among Curator's names a new node is never before another: its
//! number is higher. So claims before one only leave, by their owners, by the end of their
//! sessions, or by an operator, and one that fits goes on fitting. Its node has to exist: every
//! grant and every renewal proves that.
//!
//! The token is the czxid of the node, the id of the transaction that created it, times 1024. It
//! grows over everything the ensemble does. The sequence does not: it starts again at 0 when the
//! server deletes an empty container. Order of nodes, of czxids and of conflicting grants are one.
//!
//! The races:
//! - *A lost response to the create.* A second node of the same claim would wait for the first one
//!   for ever. Therefore a claim with an unknown outcome first searches for a node with its prefix,
//!   after a `sync`, because the session may be at a server by now that lags behind.
//! - *A server that is cut off.* It goes on responding to reads, while the majority may have ended
//!   the session and granted the lock to another claim. Therefore a grant after waiting is proven
//!   by a write: a transaction that only checks that the node exists, or for permits the mark.
//! - *A list that is older than the node.* Create and list, and proof and list, are sent on one
//!   connection in this order, and ZooKeeper responds in this order: the list contains what the
//!   first request showed.
//! - *A reader behind a holder that was made shared* (`downgrade`). Only the data of the first node
//!   say so. They are read after the list, and again with the watch: the mark is never taken back,
//!   so that a reader which sees it may pass, and one which comes too early is woken by it.
//! - *Claims to permits* one behind the other: only the first waiter watches the holders, each
//!   other one the waiter before it. A claim that waited and is granted marks its node as held,
//!   which wakes the next one: that is the first waiter now. A lost mark costs time, not safety:
//!   the next request lists the nodes.
//! - *A lock and a semaphore on one key.* The later claim removes itself, and is refused.
//! - *The sequence overflows* after 2^31 children without a moment in which the key is empty, and
//!   new nodes sort before the holder's. A claim whose own number is negative is refused.
//! - *The container is deleted* by the server when it is empty: it is created again.

use zookeeper_client::{CreateMode, Error as ClientError};

use super::super::claims::{Awaited, ClaimNode, TrackedState};
use super::super::connection::session::Session;
use super::super::error;
use super::super::layout::node_data::{self, Mark};
use super::super::layout::{self, modes};
use super::super::nodes::{self, StoredNode};
use super::find_node;
use super::order::{InTheWay, Queue};
use crate::backend::{Attempt, Busy, Claim, Grant, Mode};
use crate::error::{Error, ErrorKind, Result};

/// How often to retry when the server deletes the empty container before the node is created.
const CREATE_TRIES_MAX: usize = 5;

/// Creates the node of the claim, or finds how far an existing one has come.
pub(crate) async fn try_acquire(session: &Session, claim: &Claim) -> Result<Attempt<Grant>> {
    let node = match session.claims.state(claim) {
        None if !claim.unconfirmed => None,
        None | Some(TrackedState::Requested) => find_claim_node(session, claim).await?,
        Some(
            TrackedState::Queued { node, awaits: Awaited::Nothing } | TrackedState::Held(node),
        ) => {
            return acquire_existing(session, claim, node).await;
        }
        Some(TrackedState::Queued { node, .. }) => Some(node),
    };
    if let Some(node) = node
        && let Some(attempt) = recheck(session, claim, node).await?
    {
        return Ok(attempt);
    }
    create(session, claim).await
}

/// Nothing is in the way of this node: a watch has shown that, or the claim holds already. If it
/// exists, it is granted. The list of all children, however long, need not be read.
async fn acquire_existing(
    session: &Session,
    claim: &Claim,
    node: ClaimNode,
) -> Result<Attempt<Grant>> {
    let exists = if claim.mode.is_lock() {
        session.prove_nodes(&session.client(), &[&node.path]).await?
    } else {
        mark_held(session, claim, &node).await?
    };
    if !exists {
        session.claims.remove(claim);
        return create(session, claim).await;
    }
    Ok(granted(session, claim, node))
}

/// Tells the claim behind this one that it is the first waiter now. A write to the claim's own
/// node: it proves, too, that the node exists; `false` if not.
async fn mark_held(session: &Session, claim: &Claim, node: &ClaimNode) -> Result<bool> {
    let data = node_data::encode(&claim.holder_info, session.timeout(), Some(Mark::Held));
    match session.client().set_data(&node.path, &data, None).await {
        Ok(_) => Ok(true),
        Err(ClientError::NoNode) => Ok(false),
        Err(error) => Err(error::from_client(error)),
    }
}

/// Finds what is in the way of an existing node; `None` if it does not exist any more.
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
    let attempt = decide(session, claim, node.clone(), children).await?;
    if matches!(attempt, Attempt::Granted(_)) && !claim.mode.is_lock() {
        // The grant is proven; without the mark the next one lists the nodes later by itself.
        drop(mark_held(session, claim, &node).await);
    }
    Ok(Some(attempt))
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
    let prefix =
        format!("{parent}/{}{}", session.node_prefix(claim.owner), modes::marker(claim.mode));
    let data = node_data::encode(&claim.holder_info, session.timeout(), None);
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
                session.claims.set(claim, queued(node.clone(), Awaited::Unknown));
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

/// Grants the claim if nothing is in its way.
async fn decide(
    session: &Session,
    claim: &Claim,
    node: ClaimNode,
    children: Vec<String>,
) -> Result<Attempt<Grant>> {
    let queue = Queue::of(children);
    let Some(rank) = queue.rank(layout::name_of(&node.path)) else {
        session.claims.remove(claim);
        let message = "the queue entry was deleted by another client; try again";
        return Err(Error::new(ErrorKind::Unavailable, message));
    };
    if let Some(refusal) = refusal(claim, &queue, rank) {
        remove(session, claim, &node).await?;
        return Err(refusal);
    }
    let parent = session.tree.key(&claim.key);
    let path_of = |rank: usize| format!("{parent}/{}", queue.names()[rank]);
    let mut first = None;
    let awaits = match queue.in_the_way(rank, claim.mode, None) {
        InTheWay::Nothing => return Ok(granted(session, claim, node)),
        InTheWay::Holders => Awaited::Holders,
        InTheWay::Child { rank, only } => {
            if claim.mode == Mode::Shared && rank == 0 {
                first = nodes::read(session, &path_of(0)).await?;
                if first.as_ref().is_none_or(|first| first.mode() == Mode::Shared) {
                    return Ok(granted(session, claim, node));
                }
            }
            Awaited::Node { path: path_of(rank), only }
        }
    };
    // One round trip for both.
    let (left, first) = tokio::join!(biased; leave(session, claim, node, awaits), async {
        match first {
            Some(first) => Ok(Some(first)),
            None => nodes::read(session, &path_of(0)).await,
        }
    });
    left?;
    busy(claim, &queue, rank, first?.as_ref()).map(Attempt::Busy)
}

/// Notes what the claim awaits, or removes its node if it does not wait.
async fn leave(session: &Session, claim: &Claim, node: ClaimNode, awaits: Awaited) -> Result<()> {
    if claim.waits {
        session.claims.set(claim, queued(node, awaits));
        return Ok(());
    }
    remove(session, claim, &node).await
}

async fn remove(session: &Session, claim: &Claim, node: &ClaimNode) -> Result<()> {
    // The node exists until the deletion is confirmed.
    session.claims.set(claim, TrackedState::Requested);
    nodes::was_deleted(session.client().delete(&node.path, None).await)?;
    session.claims.remove(claim);
    Ok(())
}

fn busy(claim: &Claim, queue: &Queue, rank: usize, first: Option<&StoredNode>) -> Result<Busy> {
    let holders = queue.holders(first.map(StoredNode::mode)).min(rank);
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let mut busy = Busy::new(claim.key.clone());
    busy.holder = first.map(StoredNode::holder).transpose()?.map(Box::new);
    busy.holders = count(holders);
    busy.ahead = claim.waits.then(|| count(rank - holders));
    Ok(busy)
}

/// Why this claim cannot use the key at all.
fn refusal(claim: &Claim, queue: &Queue, rank: usize) -> Option<Error> {
    if let Some(used) = queue.other_kind(rank, claim.mode) {
        return Some(Error::other_kind(&claim.key, used));
    }
    if !claim.mode.is_lock() && queue.names().iter().any(|name| layout::is_of_semaphore_v2(name)) {
        return Some(error::foreign_semaphore(&claim.key));
    }
    (!modes::is_in_order(&queue.names()[rank])).then(|| error::sequence_overflow(&claim.key))
}

fn granted(session: &Session, claim: &Claim, node: ClaimNode) -> Attempt<Grant> {
    let grant = session.grant(claim, node.token);
    session.claims.set(claim, TrackedState::Held(node));
    Attempt::Granted(grant)
}

fn queued(node: ClaimNode, awaits: Awaited) -> TrackedState {
    TrackedState::Queued { node, awaits }
}
