//! Renewing on all nodes, confirmed by a majority.

use std::time::Duration;

use futures_util::future::join_all;

use super::Redlock;
use super::quorum::{Quorum, too_few_respond, valid_ttl};
use crate::backend::{Backend, Claim};
use crate::error::{Error, ErrorKind, Result};

pub(super) async fn renew(redlock: &Redlock, claims: &[Claim]) -> Vec<Result<Duration>> {
    let quorum = &redlock.quorum;
    let requests: Vec<Claim> = claims.iter().map(|claim| redlock.rounds.current(claim)).collect();
    let nodes = join_all(quorum.nodes().iter().map(|node| async {
        let renewed = async { Ok(node.redis.renew(&requests).await) };
        quorum.bounded(node, renewed).await.unwrap_or_default()
    }));
    let nodes = nodes.await;
    let decide_one = |(number, claim): (usize, &Claim)| {
        let responses: Vec<_> = nodes.iter().filter_map(|node| node.get(number)).collect();
        decide(quorum, claim, &responses)
    };
    claims.iter().enumerate().map(decide_one).collect()
}

fn decide(quorum: &Quorum, claim: &Claim, responses: &[&Result<Duration>]) -> Result<Duration> {
    let renewed = responses.iter().filter(|response| response.is_ok()).count();
    if renewed >= quorum.majority() {
        return Ok(valid_ttl(claim.ttl));
    }
    let errors = responses.iter().filter_map(|response| response.as_ref().err());
    let lost: Vec<&Error> = errors.filter(|error| error.kind() == ErrorKind::Lost).collect();
    // Even if all nodes that did not respond still have it, they are no majority.
    match lost.first() {
        Some(error) if lost.len() > quorum.nodes().len() - quorum.majority() => {
            Err((*error).clone())
        }
        _ => Err(too_few_respond(claim.key.as_str())),
    }
}
