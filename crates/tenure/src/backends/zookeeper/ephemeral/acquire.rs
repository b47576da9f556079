//! Acquire with `layout=ephemeral`: creates the lock if it does not exist.
//!
//! State at the server: the lock is one ephemeral node, the node of the key. Its name is the same
//! for every holder, so that it does not say who holds. Therefore one transaction creates two
//! nodes: the lock, and the holder's own node in the companion container (`_c_…-hold`), whose name
//! contains claim and session. A waiter has a sequential node there (`_c_…-wait-N`). The
//! transaction that acquires the lock deletes it.
//!
//! Who changes what: a holder deletes lock and holder's node together, or neither (`release`). A
//! waiter deletes its own node. The server deletes the nodes of a session that ends, all at once.
//! Foreign clients know only the lock: they create and delete it without a holder's node. An
//! operator can delete anything.
//!
//! Invariant: a claim holds if its holder's node exists and has the czxid of the lock: then one
//! transaction created both. That czxid, times 1024, is the token.
//!
//! The races:
//! - *A lost response.* The repeated transaction is refused, because the lock exists. The holder's
//!   node, which is read in the same round trip, shows whether the claim itself created it.
//! - *A lock that was deleted by hand and acquired by another client.* The holder's node is left
//!   over from before: its czxid differs from that of the lock, and it is deleted.
//! - *A release that arrives late* cannot delete the lock of another claim, because the holder's
//!   node of its own claim does not exist any more.
//!
//! Order: the first waiter watches the lock, each other one the waiter before it, so that a release
//! wakes one. But any request that comes first acquires a free lock: `Info::order` is `Any`.

use zookeeper_client::{CreateMode, Error as ClientError, MultiWriteError, Stat};

use super::super::claims::{Awaited, ClaimNode, TrackedState};
use super::super::connection::session::Session;
use super::super::layout::{self, node_data};
use super::super::{error, nodes};
use super::{LockNodes, find_waiter_node};
use crate::backend::{Attempt, Busy, Claim, Grant, Holder};
use crate::error::Result;

/// How often to retry when the server deletes the empty companion before the lock is created.
const CREATE_TRIES_MAX: usize = 5;

/// Why the transaction did not acquire the lock.
enum CreateRefusal {
    LockExists,
    NoCompanion,
    NoWaiterNode,
    Other(ClientError),
}

/// Creates the lock if it does not exist. Otherwise, with `claim.waits`, creates a waiter's node.
pub(crate) async fn try_acquire(session: &Session, claim: &Claim) -> Result<Attempt<Grant>> {
    let client = session.client();
    let nodes = LockNodes::of(session, claim);
    let mut waiter_node = match session.claims.state(claim) {
        None if !claim.unconfirmed => None,
        None | Some(TrackedState::Requested) => find_waiter_node(session, &nodes).await?,
        Some(TrackedState::Queued { node, .. }) => Some(node.path),
        Some(TrackedState::Held(_)) => None,
    };
    for _ in 0..CREATE_TRIES_MAX {
        if waiter_node.is_none() {
            session.claims.set(claim, TrackedState::Requested);
        }
        let created = create(session, claim, &nodes, waiter_node.as_deref());
        // In one round trip: what this transaction created, or an earlier one whose response was
        // lost.
        let (created, hold) = tokio::join!(biased; created, async {
            client.check_stat(&nodes.hold).await
        });
        let czxid = match (&created, &hold) {
            (Ok(()), Ok(Some(stat))) => Some(stat.czxid),
            (Err(CreateRefusal::LockExists), Ok(Some(stat))) => {
                created_together(session, &nodes, stat).await?
            }
            _ => None,
        };
        if let Some(czxid) = czxid {
            let node = ClaimNode { path: nodes.lock, token: layout::token(czxid)? };
            let grant = session.grant(claim, node.token);
            session.claims.set(claim, TrackedState::Held(node));
            return Ok(Attempt::Granted(grant));
        }
        match created {
            // The holder's node was deleted again at once, or reading it failed.
            Ok(()) => hold.map(drop).map_err(error::from_client)?,
            Err(CreateRefusal::LockExists) => {
                return busy(session, claim, &nodes, waiter_node).await;
            }
            Err(CreateRefusal::NoCompanion) => session.create_container(&nodes.companion).await?,
            Err(CreateRefusal::NoWaiterNode) => waiter_node = None,
            Err(CreateRefusal::Other(error)) => return Err(error::from_client(error)),
        }
    }
    Err(error::container_deleted())
}

/// One transaction creates the lock and the holder's node, and deletes the waiter's node.
async fn create(
    session: &Session,
    claim: &Claim,
    nodes: &LockNodes,
    waiter_node: Option<&str>,
) -> Result<(), CreateRefusal> {
    let client = session.client();
    let data = node_data::encode(&claim.holder_info, session.timeout(), None);
    let options = session.create_options(CreateMode::Ephemeral);
    let mut writer = client.new_multi_writer();
    writer.add_create(&nodes.lock, &data, &options).map_err(CreateRefusal::Other)?;
    writer.add_create(&nodes.hold, &[], &options).map_err(CreateRefusal::Other)?;
    if let Some(waiter_node) = waiter_node {
        writer.add_delete(waiter_node, None).map_err(CreateRefusal::Other)?;
    }
    match writer.commit().await {
        Ok(_) => Ok(()),
        // The index is the position of the operation above.
        Err(MultiWriteError::OperationFailed { index, source }) => Err(match source {
            ClientError::NodeExists => CreateRefusal::LockExists,
            ClientError::NoNode if index < 2 => CreateRefusal::NoCompanion,
            ClientError::NoNode => CreateRefusal::NoWaiterNode,
            other => CreateRefusal::Other(other),
        }),
        Err(MultiWriteError::RequestFailed { source }) => Err(CreateRefusal::Other(source)),
    }
}

/// The transaction that created both the lock and this holder's node, if it was one. Otherwise the
/// lock was deleted by hand and acquired by another client: deletes the holder's node.
async fn created_together(
    session: &Session,
    nodes: &LockNodes,
    hold: &Stat,
) -> Result<Option<i64>> {
    let client = session.client();
    let lock = client.check_stat(&nodes.lock).await.map_err(error::from_client)?;
    if lock.is_some_and(|lock| lock.czxid == hold.czxid) {
        return Ok(Some(hold.czxid));
    }
    nodes::was_deleted(client.delete(&nodes.hold, None).await)?;
    Ok(None)
}

/// Another claim holds the lock. Creates a waiter's node if this one waits.
async fn busy(
    session: &Session,
    claim: &Claim,
    nodes: &LockNodes,
    waiter_node: Option<String>,
) -> Result<Attempt<Grant>> {
    let mut busy = Busy::new(claim.key.clone());
    if claim.waits {
        busy.ahead = Some(enqueue(session, claim, nodes, waiter_node).await?);
    } else {
        session.claims.remove(claim);
    }
    busy.holder = holder(session, &nodes.lock).await?.map(Box::new);
    Ok(Attempt::Busy(busy))
}

async fn holder(session: &Session, lock: &str) -> Result<Option<Holder>> {
    match nodes::read(session, lock).await? {
        Some(node) if !node.is_ephemeral() => {
            Err(error::bad_node(lock, "is not ephemeral; use one layout for a chroot"))
        }
        Some(node) => node.holder().map(Some),
        None => Ok(None),
    }
}

/// Creates a waiter's node, unless there is one, and notes which node to watch. Returns how many
/// waiters are before it.
async fn enqueue(
    session: &Session,
    claim: &Claim,
    nodes: &LockNodes,
    waiter_node: Option<String>,
) -> Result<u32> {
    let client = session.client();
    let prefix = format!("{}/{}", nodes.companion, nodes.wait);
    let data = node_data::encode(&claim.holder_info, session.timeout(), None);
    let options = session.create_options(CreateMode::EphemeralSequential);
    // Both are sent before either response is awaited, in this order.
    let created = waiter_node.is_none().then(|| client.create(&prefix, &data, &options));
    let children = client.list_children(&nodes.companion);
    let path = match (created, waiter_node) {
        (Some(created), _) => {
            format!("{prefix}{}", created.await.map_err(error::from_client)?.1)
        }
        (None, waiter_node) => waiter_node.unwrap_or_default(),
    };
    let mut waiters = children.await.map_err(error::from_client)?;
    waiters.retain(|name| layout::is_waiter_node(name));
    layout::sort_after(&mut waiters, layout::WAIT);
    let name = layout::name_of(&path);
    let rank = waiters.iter().position(|waiter| waiter == name).unwrap_or(waiters.len());
    let predecessor = match rank {
        0 => nodes.lock.clone(),
        _ => format!("{}/{}", nodes.companion, waiters[rank - 1]),
    };
    let awaits = Awaited::Node { path: predecessor, only: rank == 0 };
    // The token is that of the lock, which is still to be created: this one is not used.
    let node = ClaimNode { path, token: layout::token(1)? };
    session.claims.set(claim, TrackedState::Queued { node, awaits });
    Ok(u32::try_from(rank).unwrap_or(u32::MAX))
}
