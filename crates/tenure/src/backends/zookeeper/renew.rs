//! Renew: proves by a majority that the nodes of the claims exist, in batches for each session.
//!
//! The client library keeps sessions alive by its pings. But a ping proves nothing: a follower that
//! is cut off responds to it too. So a renewal is a transaction that only checks nodes, and its
//! response is the start of the next lease. `queue/renew.rs` and `ephemeral/renew.rs` have the
//! requests.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use zookeeper_client::{Error as ClientError, Stat};

use super::claims::{ClaimNode, TrackedState};
use super::config::Layout;
use super::connection::session::Session;
use super::connection::{CallKind, SessionPool};
use super::{ephemeral, error, layout, queue};
use crate::backend::{Claim, LostReason};
use crate::error::{Error, ErrorKind, Result};

/// How many claims are proven by one transaction, so that its size stays below the server's limit.
const BATCH: usize = 100;

/// A claim that is held, as far as is known.
pub(super) struct HeldNode<'a> {
    /// Its position in the call.
    index: usize,
    pub(super) claim: &'a Claim,
    pub(super) node: ClaimNode,
}

/// Renews the claims. Opens no session: what is not held in the current ones is not held at all.
pub(super) async fn renew(sessions: &SessionPool, claims: &[Claim]) -> Vec<Result<Duration>> {
    let mut results: Vec<_> = claims.iter().map(|_| Ok(Duration::ZERO)).collect();
    let mut groups: Vec<(Arc<Session>, Vec<HeldNode<'_>>)> = Vec::new();
    for (index, claim) in claims.iter().enumerate() {
        let session = sessions.of(claim);
        let held = match held_node(&session, claim) {
            Ok(node) => HeldNode { index, claim, node },
            Err(error) => {
                results[index] = Err(error);
                continue;
            }
        };
        match groups.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &session)) {
            Some((_, group)) => group.push(held),
            None => groups.push((session, vec![held])),
        }
    }
    let batches = groups.iter().flat_map(|(session, group)| {
        group.chunks(BATCH).map(|batch| renew_batch(sessions, session, batch))
    });
    let renewed = join_all(batches).await.into_iter().flatten();
    for (held, result) in groups.iter().flat_map(|(_, group)| group).zip(renewed) {
        results[held.index] = result;
    }
    results
}

/// The node of a claim that is held as far as is known, by the grant that the renewal names.
fn held_node(session: &Session, claim: &Claim) -> Result<ClaimNode> {
    session.claims.touch(claim);
    match session.claims.state(claim) {
        _ if session.has_ended() => Err(Error::gone(LostReason::SessionGone)),
        Some(TrackedState::Held(node)) if claim.token.is_none_or(|token| node.has(token)) => {
            Ok(node)
        }
        // A session that replaces another knows nothing of the claims of that one.
        None if session.number > 0 => Err(Error::gone(LostReason::SessionGone)),
        None | Some(_) => Err(Error::not_held()),
    }
}

async fn renew_batch(
    sessions: &SessionPool,
    session: &Arc<Session>,
    batch: &[HeldNode<'_>],
) -> Vec<Result<Duration>> {
    let requests = || async {
        let results = match sessions.config.layout {
            Layout::Queue => queue::renew::renew(session, batch).await,
            Layout::Ephemeral => ephemeral::renew::renew(session, batch).await,
        };
        match results.first() {
            Some(Err(error)) if results.iter().all(is_unknown) => Err(error.clone()),
            _ => Ok(results),
        }
    };
    let client = session.client();
    let mut renewed = sessions.call(session, CallKind::Renew, requests()).await;
    // A proof changes nothing: it can be repeated where the session is now.
    if renewed.is_err() && !Arc::ptr_eq(&client, &session.client()) {
        renewed = sessions.call(session, CallKind::Renew, requests()).await;
    }
    let results = renewed.unwrap_or_else(|error| vec![Err(error); batch.len()]);
    // If a request failed because the session ended, the loss is certain.
    let explain = |result: Result<Duration>| {
        if is_unknown(&result) && session.has_ended() {
            Err(Error::gone(LostReason::SessionGone))
        } else {
            result
        }
    };
    results.into_iter().map(explain).collect()
}

fn is_unknown(result: &Result<Duration>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable)
}

/// The lease of a claim if its node, as read after a proof, is still the one that was granted.
pub(super) fn confirm(
    session: &Session,
    held: &HeldNode<'_>,
    stat: Result<Option<Stat>, ClientError>,
) -> Result<Duration> {
    match stat.map_err(error::from_client)? {
        Some(stat) if layout::has_token(stat.czxid, held.node.token) => {
            Ok(held.claim.ttl.min(session.lease()))
        }
        Some(_) | None => {
            session.claims.remove(held.claim);
            Err(Error::gone(LostReason::Evicted))
        }
    }
}
