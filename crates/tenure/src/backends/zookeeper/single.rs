//! The layout of one ephemeral node: whoever creates the node of the key holds. Beside it, in a
//! container named like the key with a `%` behind, the holder has a node of its own, made and
//! deleted together with the lock, so that nobody deletes another's. Waiters have one there too:
//! the first watches the lock, the others the one before, so that a release wakes one.

use std::time::Duration;

use zookeeper_client::{CreateMode, Error as ClientError, MultiWriteError, Stat};

use super::queue::{gone, judge};
use super::session::{Ahead, Place, Session, Spot, token};
use super::{fault, names, people, record};
use crate::backend::{Claim, Grant};
use crate::claim::{Attempt, Busy};
use crate::error::{Error, ErrorKind, Result};

/// Where the nodes of a claim are.
struct Nodes {
    lock: String,
    beside: String,
    hold: String,
    /// The name of the waiting node, without its sequence.
    wait: String,
}

impl Nodes {
    fn of(session: &Session, claim: &Claim) -> Nodes {
        let lock = session.tree.key(&claim.key);
        let (beside, mine) = (names::beside(&lock), session.protected(claim.owner));
        let (hold, wait) = (format!("{beside}/{mine}{HOLD}"), format!("{mine}{WAIT}"));
        Nodes { lock, beside, hold, wait }
    }
}

/// Creates the lock if there is none.
pub(super) async fn take(session: &Session, claim: &Claim) -> Result<Attempt<Grant>> {
    let client = session.client();
    let nodes = Nodes::of(session, claim);
    let mut waiting = match session.spot(claim) {
        None if !claim.doubtful => None,
        None | Some(Spot::Asked) => find_waiting(session, &nodes).await?,
        Some(Spot::Queued { place, .. }) => Some(place.node),
        Some(Spot::Held(_)) => None,
    };
    for _ in 0..TRIES {
        if waiting.is_none() {
            session.set(claim, Spot::Asked);
        }
        let created = create(session, claim, &nodes, waiting.as_deref());
        // In one trip: what the transaction did, or an earlier one whose answer was lost.
        let (created, hold) = tokio::join!(biased; created, async {
            client.check_stat(&nodes.hold).await
        });
        let mine = match (&created, &hold) {
            (Ok(()), Ok(Some(stat))) => Some(stat.czxid),
            (Err(Refusal::Taken), Ok(Some(stat))) => made_together(session, &nodes, stat).await?,
            _ => None,
        };
        if let Some(czxid) = mine {
            let place = Place { node: nodes.lock, token: token(czxid)? };
            let grant = session.grant(claim, place.token);
            session.set(claim, Spot::Held(place));
            return Ok(Attempt::Granted(grant));
        }
        match created {
            Ok(()) => hold.map(drop).map_err(fault::from_client)?,
            Err(Refusal::Taken) => return busy(session, claim, &nodes, waiting).await,
            Err(Refusal::NoContainer) => session.make_container(&nodes.beside).await?,
            Err(Refusal::NotWaiting) => waiting = None,
            Err(Refusal::Other(error)) => return Err(fault::from_client(error)),
        }
    }
    Err(Error::new(ErrorKind::Unavailable, "zookeeper sweeps the container faster than we use it"))
}

/// Why the transaction did not take.
enum Refusal {
    Taken,
    NoContainer,
    NotWaiting,
    Other(ClientError),
}

/// The lock and the node beside it for the one that waited: all or nothing.
async fn create(
    session: &Session,
    claim: &Claim,
    nodes: &Nodes,
    waiting: Option<&str>,
) -> Result<(), Refusal> {
    let client = session.client();
    let data = record::encode(&claim.note, session.timeout());
    let options = session.options(CreateMode::Ephemeral);
    let mut writer = client.new_multi_writer();
    writer.add_create(&nodes.lock, &data, &options).map_err(Refusal::Other)?;
    writer.add_create(&nodes.hold, &[], &options).map_err(Refusal::Other)?;
    if let Some(waiting) = waiting {
        writer.add_delete(waiting, None).map_err(Refusal::Other)?;
    }
    match writer.commit().await {
        Ok(_) => Ok(()),
        Err(MultiWriteError::OperationFailed { index, source }) => Err(match source {
            ClientError::NodeExists => Refusal::Taken,
            ClientError::NoNode if index < 2 => Refusal::NoContainer,
            ClientError::NoNode => Refusal::NotWaiting,
            other => Refusal::Other(other),
        }),
        Err(MultiWriteError::RequestFailed { source }) => Err(Refusal::Other(source)),
    }
}

/// The transaction that made both nodes, if one did: somebody may have deleted our lock by hand,
/// and another have taken it.
async fn made_together(session: &Session, nodes: &Nodes, hold: &Stat) -> Result<Option<i64>> {
    let client = session.client();
    let lock = client.check_stat(&nodes.lock).await.map_err(fault::from_client)?;
    if lock.is_some_and(|lock| lock.czxid == hold.czxid) {
        return Ok(Some(hold.czxid));
    }
    gone(client.delete(&nodes.hold, None).await)?;
    Ok(None)
}

/// Somebody has it. With a node for those who wait, unless we do not.
async fn busy(
    session: &Session,
    claim: &Claim,
    nodes: &Nodes,
    waiting: Option<String>,
) -> Result<Attempt<Grant>> {
    let mut busy = Busy::new(claim.key.clone());
    if claim.waits {
        busy.ahead = Some(wait(session, claim, nodes, waiting).await?);
    } else {
        session.forget(claim);
    }
    busy.holder = people::single_holder(session, &nodes.lock).await?.map(Box::new);
    Ok(Attempt::Busy(busy))
}

/// Takes or finds a place among those who wait, and says how many are before it.
async fn wait(
    session: &Session,
    claim: &Claim,
    nodes: &Nodes,
    waiting: Option<String>,
) -> Result<u32> {
    let client = session.client();
    let prefix = format!("{}/{}", nodes.beside, nodes.wait);
    let data = record::encode(&claim.note, session.timeout());
    let options = session.options(CreateMode::EphemeralSequential);
    let created = waiting.is_none().then(|| client.create(&prefix, &data, &options));
    let children = client.list_children(&nodes.beside);
    let node = match (created, waiting) {
        (Some(created), _) => {
            format!("{prefix}{}", created.await.map_err(fault::from_client)?.1)
        }
        (None, waiting) => waiting.unwrap_or_default(),
    };
    let mut children = children.await.map_err(fault::from_client)?;
    children.retain(|name| is_waiting(name));
    names::sort_by(&mut children, WAIT);
    let name = node.rsplit_once('/').map_or("", |(_, name)| name);
    let rank = children.iter().position(|child| child == name).unwrap_or(children.len());
    let ahead = match rank {
        0 => nodes.lock.clone(),
        _ => format!("{}/{}", nodes.beside, children[rank - 1]),
    };
    // The token is that of the lock, which is still to be created.
    let place = Place { node, token: token(1)? };
    let ahead = Ahead { node: ahead, holds: rank == 0, gone: false };
    session.set(claim, Spot::Queued { place, ahead });
    Ok(u32::try_from(rank).unwrap_or(u32::MAX))
}

/// A waiting node that we may have made without hearing of it.
async fn find_waiting(session: &Session, nodes: &Nodes) -> Result<Option<String>> {
    let children = people::fresh_children(session, &nodes.beside).await?;
    let mine = children.into_iter().find(|child| child.starts_with(&nodes.wait));
    Ok(mine.map(|child| format!("{}/{child}", nodes.beside)))
}

/// Proves all claims at once, and that each lock is the one that was granted.
pub(super) async fn renew(session: &Session, claims: &[(&Claim, Place)]) -> Vec<Result<Duration>> {
    let client = session.client();
    let locks: Vec<_> = claims.iter().map(|(_, place)| place.node.as_str()).collect();
    // Nodes of the same name come and go, so a proof that one is there does not name its holder:
    // the reads behind it do, and are not older than it.
    let stats = async {
        let stats = locks.iter().map(|lock| client.check_stat(lock));
        futures_util::future::join_all(stats.collect::<Vec<_>>()).await
    };
    match tokio::join!(biased; session.prove(&client, &locks), stats) {
        (Ok(_), stats) => {
            let answers = claims.iter().zip(stats);
            answers.map(|((claim, place), stat)| judge(session, claim, place, stat)).collect()
        }
        (Err(error), _) => vec![Err(error); claims.len()],
    }
}

/// Deletes what is ours: the lock only together with the node beside it.
pub(super) async fn release(session: &Session, claim: &Claim) -> Result<bool> {
    let client = session.client();
    let nodes = Nodes::of(session, claim);
    let waiting = match session.spot(claim) {
        None if !claim.doubtful => return Ok(false),
        None | Some(Spot::Asked) => find_waiting(session, &nodes).await?,
        Some(Spot::Queued { place, .. }) => Some(place.node),
        Some(Spot::Held(_)) => None,
    };
    // Also while it waits: a request that took may have gone unanswered.
    let held = delete_pair(session, &nodes.hold, &nodes.lock).await?;
    if let Some(waiting) = waiting {
        gone(client.delete(&waiting, None).await)?;
    }
    if !held {
        // Somebody deleted the lock by hand.
        gone(client.delete(&nodes.hold, None).await)?;
    }
    session.forget(claim);
    Ok(held)
}

/// Deletes the lock if the node beside it is there. `false` if one of them is not.
pub(super) async fn delete_pair(session: &Session, hold: &str, lock: &str) -> Result<bool> {
    let client = session.client();
    let mut writer = client.new_multi_writer();
    writer.add_delete(hold, None).map_err(fault::from_client)?;
    writer.add_delete(lock, None).map_err(fault::from_client)?;
    match writer.commit().await {
        Ok(_) => Ok(true),
        Err(MultiWriteError::OperationFailed { source: ClientError::NoNode, .. }) => Ok(false),
        Err(error) => Err(fault::from_client(error.into())),
    }
}

/// Whether a node beside a lock is that of its holder.
pub(super) fn is_holding(name: &str) -> bool {
    name.ends_with(HOLD)
}

/// Whether a node beside a lock is that of a waiter.
pub(super) fn is_waiting(name: &str) -> bool {
    name.contains(WAIT)
}

/// What names of nodes beside a lock have behind their protection.
const HOLD: &str = "hold";
pub(super) const WAIT: &str = "wait-";
/// How often an empty container may be swept before our very eyes.
const TRIES: usize = 5;
