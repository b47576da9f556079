//! The layout of one ephemeral node: whoever creates the node of the key holds. Beside it, in a
//! container named like the key with a `%` behind, the holder has a node of its own, made and
//! deleted together with the lock, so that nobody deletes another's; and so have waiters, for
//! people to see.

use std::time::Duration;

use zookeeper_client::{CreateMode, Error as ClientError, MultiWriteError, Stat};

use super::queue::{gone, judge};
use super::session::{Place, Session, Spot, token};
use super::{fault, people, record};
use crate::backend::{Claim, Grant};
use crate::claim::{Attempt, Busy};
use crate::error::{Error, ErrorKind, Result};

/// Where the nodes of a claim are.
pub(super) struct Nodes {
    pub(super) lock: String,
    pub(super) beside: String,
    hold: String,
    wait: String,
}

impl Nodes {
    fn of(session: &Session, claim: &Claim) -> Nodes {
        let lock = session.tree.key(&claim.key);
        let (beside, mine) = (format!("{lock}%"), session.protected(claim.owner));
        let (hold, wait) = (format!("{beside}/{mine}{HOLD}"), format!("{beside}/{mine}{WAIT}"));
        Nodes { lock, beside, hold, wait }
    }
}

/// Creates the node if there is none.
pub(super) async fn take(session: &Session, claim: &Claim) -> Result<Attempt<Grant>> {
    let nodes = Nodes::of(session, claim);
    let waits = matches!(session.spot(claim), Some(Spot::Asked)) || claim.doubtful;
    session.set(claim, Spot::Asked);
    for _ in 0..TRIES {
        let created = create(session, claim, &nodes);
        // In one trip: what the transaction did, or an earlier one whose answer was lost.
        let (created, hold) = tokio::join!(biased; created, async {
            session.client.check_stat(&nodes.hold).await
        });
        if let (Ok(()) | Err(Refusal::Taken), Ok(Some(stat))) = (&created, &hold) {
            return granted(session, claim, &nodes, stat, waits).await;
        }
        match created {
            Ok(()) => hold.map(drop).map_err(fault::from_client)?,
            Err(Refusal::Taken) => return busy(session, claim, &nodes).await,
            Err(Refusal::NoContainer) => session.make_container(&nodes.beside).await?,
            Err(Refusal::Other(error)) => return Err(fault::from_client(error)),
        }
    }
    Err(Error::new(ErrorKind::Unavailable, "zookeeper sweeps the container faster than we use it"))
}

/// Why the transaction did not take.
enum Refusal {
    Taken,
    NoContainer,
    Other(ClientError),
}

/// The lock and the node beside it, both or neither.
async fn create(session: &Session, claim: &Claim, nodes: &Nodes) -> Result<(), Refusal> {
    let data = record::encode(&claim.note, session.timeout());
    let options = session.options(CreateMode::Ephemeral);
    let mut writer = session.client.new_multi_writer();
    writer.add_create(&nodes.lock, &data, &options).map_err(Refusal::Other)?;
    writer.add_create(&nodes.hold, &[], &options).map_err(Refusal::Other)?;
    match writer.commit().await {
        Ok(_) => Ok(()),
        Err(MultiWriteError::OperationFailed { source, .. }) => Err(match source {
            ClientError::NodeExists => Refusal::Taken,
            ClientError::NoNode => Refusal::NoContainer,
            other => Refusal::Other(other),
        }),
        Err(MultiWriteError::RequestFailed { source }) => Err(Refusal::Other(source)),
    }
}

async fn granted(
    session: &Session,
    claim: &Claim,
    nodes: &Nodes,
    stat: &Stat,
    waited: bool,
) -> Result<Attempt<Grant>> {
    let place = Place { node: nodes.lock.clone(), token: token(stat.czxid)? };
    if waited {
        gone(session.client.delete(&nodes.wait, None).await)?;
    }
    let grant = session.grant(claim, place.token);
    session.set(claim, Spot::Held(place));
    Ok(Attempt::Granted(grant))
}

async fn busy(session: &Session, claim: &Claim, nodes: &Nodes) -> Result<Attempt<Grant>> {
    let mut busy = Busy::new(claim.key.clone());
    if claim.waits {
        let data = record::encode(&claim.note, session.timeout());
        let options = session.options(CreateMode::Ephemeral);
        match session.client.create(&nodes.wait, &data, &options).await {
            // Without its container nobody can be told that we wait; that harms nobody.
            Ok(_) | Err(ClientError::NodeExists | ClientError::NoNode) => {}
            Err(error) => return Err(fault::from_client(error)),
        }
    } else {
        session.forget(claim);
    }
    busy.holder = people::single_holder(session, &nodes.lock).await?.map(Box::new);
    Ok(Attempt::Busy(busy))
}

/// Proves all claims at once, and that each lock is the one that was granted.
pub(super) async fn renew(session: &Session, claims: &[(&Claim, Place)]) -> Vec<Result<Duration>> {
    let locks: Vec<_> = claims.iter().map(|(_, place)| place.node.as_str()).collect();
    // Nodes of the same name come and go, so a proof that one is there does not name its holder:
    // the reads behind it do, and are not older than it.
    let stats = async {
        let stats = locks.iter().map(|lock| session.client.check_stat(lock));
        futures_util::future::join_all(stats.collect::<Vec<_>>()).await
    };
    match tokio::join!(biased; session.prove(&locks), stats) {
        (Ok(_), stats) => {
            let answers = claims.iter().zip(stats);
            answers.map(|((claim, place), stat)| judge(session, claim, place, stat)).collect()
        }
        (Err(error), _) => vec![Err(error); claims.len()],
    }
}

/// Deletes what is ours: the lock only together with the node beside it.
pub(super) async fn release(session: &Session, claim: &Claim) -> Result<bool> {
    let spot = session.spot(claim);
    if spot.is_none() && !claim.doubtful {
        return Ok(false);
    }
    let nodes = Nodes::of(session, claim);
    let held = delete_pair(session, &nodes.hold, &nodes.lock, None).await?;
    if !matches!(spot, Some(Spot::Held(_))) || !held {
        let (wait, hold) = tokio::join!(
            session.client.delete(&nodes.wait, None),
            session.client.delete(&nodes.hold, None)
        );
        gone(wait)?;
        gone(hold)?;
    }
    session.forget(claim);
    Ok(held)
}

/// Deletes the lock if the node beside it is there. `false` if one of them is not.
pub(super) async fn delete_pair(
    session: &Session,
    hold: &str,
    lock: &str,
    version: Option<i32>,
) -> Result<bool> {
    let mut writer = session.client.new_multi_writer();
    writer.add_delete(hold, None).map_err(fault::from_client)?;
    writer.add_delete(lock, version).map_err(fault::from_client)?;
    match writer.commit().await {
        Ok(_) => Ok(true),
        Err(MultiWriteError::OperationFailed { source: ClientError::NoNode, .. }) => Ok(false),
        Err(error) => Err(fault::from_client(error.into())),
    }
}

/// The ends of the names of nodes beside a lock.
pub(super) const HOLD: &str = "hold";
pub(super) const WAIT: &str = "wait";
/// How often an empty container may be swept before our very eyes.
const TRIES: usize = 5;
