//! Curator's layout: below the node of a key each claim has an ephemeral sequential node, and the
//! first in order holds. Decides who does; `watch` waits and `people` tells.

use std::time::Duration;

use zookeeper_client::{CreateMode, Error as ClientError, Stat};

use super::session::{Ahead, Place, Session, Spot, token};
use super::{fault, names, people, record};
use crate::backend::{Claim, Grant};
use crate::claim::{Attempt, Busy, LostReason};
use crate::error::{Error, ErrorKind, Result};

/// Takes a place, or looks how far ours has come.
pub(super) async fn take(session: &Session, claim: &Claim) -> Result<Attempt<Grant>> {
    let place = match session.spot(claim) {
        None if !claim.doubtful => None,
        // The answer to an earlier ask was lost: a second node would wait for the first.
        None | Some(Spot::Asked) => find(session, claim).await?,
        Some(Spot::Queued { place, ahead }) if ahead.gone && ahead.holds => {
            return next_in_line(session, claim, place).await;
        }
        Some(Spot::Queued { place, .. } | Spot::Held(place)) => Some(place),
    };
    if let Some(place) = place
        && let Some(attempt) = look(session, claim, place).await?
    {
        return Ok(attempt);
    }
    enter(session, claim).await
}

/// The holder just before us is gone: if our node is there, it is the first.
async fn next_in_line(session: &Session, claim: &Claim, place: Place) -> Result<Attempt<Grant>> {
    let client = session.client();
    if !session.prove(&client, &[&place.node]).await? {
        session.forget(claim);
        return enter(session, claim).await;
    }
    let grant = session.grant(claim, place.token);
    session.set(claim, Spot::Held(place));
    Ok(Attempt::Granted(grant))
}

/// How far our node has come; `None` if it is gone.
async fn look(session: &Session, claim: &Claim, place: Place) -> Result<Option<Attempt<Grant>>> {
    let client = session.client();
    let nodes = [place.node.as_str()];
    // Sent in this order and answered in this order: the list is not older than the proof.
    let proof = session.prove(&client, &nodes);
    let parent = session.tree.key(&claim.key);
    let (proof, children) = tokio::join!(biased; proof, async {
        client.list_children(&parent).await
    });
    if !proof? {
        session.forget(claim);
        return Ok(None);
    }
    let children = children.map_err(fault::from_client)?;
    decide(session, claim, place, children).await.map(Some)
}

/// Looks for a node that we may have made without hearing of it.
async fn find(session: &Session, claim: &Claim) -> Result<Option<Place>> {
    let client = session.client();
    let Some(node) = find_node(session, claim).await? else { return Ok(None) };
    let stat = client.check_stat(&node).await.map_err(fault::from_client)?;
    let place = |stat: Stat| Ok(Place { node, token: token(stat.czxid)? });
    stat.map(place).transpose()
}

async fn find_node(session: &Session, claim: &Claim) -> Result<Option<String>> {
    let client = session.client();
    let parent = session.tree.key(&claim.key);
    // After a lost connection we may be at a server that has not heard of our request yet.
    let sync = client.sync(&parent);
    let children = client.list_children(&parent);
    let (sync, children) = tokio::join!(sync, children);
    let children = match (sync, children) {
        (_, Err(ClientError::NoNode)) => return Ok(None),
        (Err(error), _) | (_, Err(error)) => return Err(fault::from_client(error)),
        (Ok(()), Ok(children)) => children,
    };
    let mine = session.protected(claim.owner);
    let node = children.into_iter().find(|child| child.starts_with(&mine));
    Ok(node.map(|child| format!("{parent}/{child}")))
}

/// Makes our node and looks at the others, in one trip.
async fn enter(session: &Session, claim: &Claim) -> Result<Attempt<Grant>> {
    let client = session.client();
    let parent = session.tree.key(&claim.key);
    let prefix = format!("{parent}/{}{}", session.protected(claim.owner), names::LOCK);
    let data = record::encode(&claim.note, session.timeout());
    let options = session.options(CreateMode::EphemeralSequential);
    for _ in 0..TRIES {
        session.set(claim, Spot::Asked);
        let created = client.create(&prefix, &data, &options);
        let children = client.list_children(&parent);
        let (created, children) = tokio::join!(created, children);
        match created {
            Ok((stat, sequence)) => {
                let place =
                    Place { node: format!("{prefix}{sequence}"), token: token(stat.czxid)? };
                // Whatever becomes of the list, the node is known from here on.
                session.set(claim, queued(place.clone(), String::new(), false));
                let children = children.map_err(fault::from_client)?;
                return decide(session, claim, place, children).await;
            }
            // Nobody was here before, or the server has swept an empty container.
            Err(ClientError::NoNode) => session.make_container(&parent).await?,
            Err(error) => {
                let error = fault::from_client(error);
                if error.kind() != ErrorKind::Unavailable {
                    session.forget(claim);
                }
                return Err(error);
            }
        }
    }
    session.forget(claim);
    Err(Error::new(ErrorKind::Unavailable, "zookeeper sweeps the container faster than we use it"))
}

/// Whether our node is the first of these.
async fn decide(
    session: &Session,
    claim: &Claim,
    place: Place,
    mut children: Vec<String>,
) -> Result<Attempt<Grant>> {
    let client = session.client();
    names::sort(&mut children);
    let parent = session.tree.key(&claim.key);
    let mine = place.node.rsplit_once('/').map_or("", |(_, name)| name);
    let Some(rank) = children.iter().position(|child| child == mine) else {
        session.forget(claim);
        let message = "our place in the queue was deleted; ask again";
        return Err(Error::new(ErrorKind::Unavailable, message));
    };
    if rank == 0 {
        let grant = session.grant(claim, place.token);
        session.set(claim, Spot::Held(place));
        return Ok(Attempt::Granted(grant));
    }
    let left = if claim.waits {
        let ahead = format!("{parent}/{}", children[rank - 1]);
        session.set(claim, queued(place, ahead, rank == 1));
        None
    } else {
        session.set(claim, Spot::Asked);
        Some(client.delete(&place.node, None))
    };
    let holder = people::holder(session, &format!("{parent}/{}", children[0])).await?;
    if let Some(left) = left {
        gone(left.await)?;
        session.forget(claim);
    }
    let mut busy = Busy::new(claim.key.clone());
    busy.holder = holder.map(Box::new);
    busy.ahead = claim.waits.then(|| u32::try_from(rank - 1).unwrap_or(u32::MAX));
    Ok(Attempt::Busy(busy))
}

fn queued(place: Place, node: String, holds: bool) -> Spot {
    Spot::Queued { place, ahead: Ahead { node, holds, gone: false } }
}

/// Proves all claims at once; looks at each only if one is missing.
pub(super) async fn renew(session: &Session, claims: &[(&Claim, Place)]) -> Vec<Result<Duration>> {
    let client = session.client();
    let nodes: Vec<_> = claims.iter().map(|(_, place)| place.node.as_str()).collect();
    match session.prove(&client, &nodes).await {
        Ok(true) => claims.iter().map(|(claim, _)| Ok(claim.ttl.min(session.lease()))).collect(),
        Ok(false) => {
            // The refused proof was an answer of the majority, and these reads come after it.
            let stats = nodes.iter().map(|node| client.check_stat(node));
            let stats = futures_util::future::join_all(stats.collect::<Vec<_>>()).await;
            let answers = claims.iter().zip(stats);
            answers.map(|((claim, place), stat)| judge(session, claim, place, stat)).collect()
        }
        Err(error) => vec![Err(error); claims.len()],
    }
}

/// Whether the node is still the one that was granted.
pub(super) fn judge(
    session: &Session,
    claim: &Claim,
    place: &Place,
    stat: Result<Option<Stat>, ClientError>,
) -> Result<Duration> {
    match stat.map_err(fault::from_client)? {
        Some(stat) if token(stat.czxid)? == place.token => Ok(claim.ttl.min(session.lease())),
        Some(_) | None => {
            session.forget(claim);
            Err(Error::gone(LostReason::Evicted))
        }
    }
}

/// Deletes our node, wherever it stands.
pub(super) async fn release(session: &Session, claim: &Claim) -> Result<bool> {
    let client = session.client();
    let (node, held) = match session.spot(claim) {
        None if !claim.doubtful => return Ok(false),
        None | Some(Spot::Asked) => match find_node(session, claim).await? {
            Some(node) => (node, false),
            None => {
                session.forget(claim);
                return Ok(false);
            }
        },
        Some(Spot::Queued { place, .. }) => (place.node, false),
        Some(Spot::Held(place)) => (place.node, true),
    };
    let was_there = gone(client.delete(&node, None).await)?;
    session.forget(claim);
    Ok(was_there && held)
}

/// Whether a node was there to be deleted. That it was not is no error.
pub(super) fn gone(deleted: Result<(), ClientError>) -> Result<bool> {
    match deleted {
        Ok(()) => Ok(true),
        Err(ClientError::NoNode) => Ok(false),
        Err(error) => Err(fault::from_client(error)),
    }
}

/// How often an empty container may be swept before our very eyes.
const TRIES: usize = 5;
