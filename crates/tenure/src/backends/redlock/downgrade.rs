//! Downgrade: makes the grant shared on all nodes, confirmed by a majority.
//!
//! **State.** On each node a grant of its own, which the node makes shared if it has this token
//! (`raise` gave it to a majority), and else leaves alone.
//!
//! **Invariant.** With a majority of shared nodes, readers can get a majority, and no writer can:
//! on each of these nodes the grant goes on. A node that was not reached, or that granted late
//! with a token of its own, stays exclusive, which keeps readers from that node and lets no claim
//! in.
//!
//! **Races.** A node makes it shared once, and says the same to a repeated request. A request that
//! comes after the release finds no grant, and creates none.

use futures_util::future::join_all;

use super::Redlock;
use super::quorum::{kept_ttl, too_few_respond, valid_ttl};
use crate::backend::{Attempt, Backend, Claim, Grant};
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

/// Makes the grant with this token shared.
pub(super) async fn downgrade(
    redlock: &Redlock,
    claim: &Claim,
    token: FencingToken,
) -> Result<Attempt<Grant>> {
    let Redlock { quorum, rounds } = redlock;
    let mut request = rounds.current(claim);
    if claim.fixed {
        request.ttl = kept_ttl(claim.ttl);
    }
    let nodes = quorum.nodes().iter();
    let responses =
        join_all(nodes.map(|node| quorum.bounded(node, node.redis.try_acquire(&request)))).await;
    let shared = responses.iter().filter(|response| response.is_ok()).count();
    if shared >= quorum.majority() {
        let ttl = valid_ttl(request.ttl).min(claim.ttl);
        return Ok(Attempt::Granted(Grant::with_range(token, ttl)));
    }
    let errors = responses.iter().filter_map(|response| response.as_ref().err());
    let lost: Vec<&Error> = errors.filter(|error| error.kind() == ErrorKind::Lost).collect();
    // Even if all nodes that did not respond still have it, they are no majority.
    match lost.first() {
        Some(error) if lost.len() > quorum.nodes().len() - quorum.majority() => {
            Err((*error).clone())
        }
        // The engine repeats it.
        _ => Err(too_few_respond(claim.key.as_str())),
    }
}
