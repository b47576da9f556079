//! Acquiring: one round over all nodes, and cancelling it if it was lost.
//!
//! **State.** On each node a lock of its own, with a lease, an owner and the last token. The nodes
//! know nothing of each other; who holds the lock is what a majority says.
//!
//! **A round.**
//! 1. All nodes are requested to grant the lock, at once, each within the response limit.
//! 2. If a majority of nodes that count has granted it, the highest token of all that granted is
//!    raised on those. Only when a majority of nodes that count has that token is the grant
//!    returned.
//! 3. Otherwise the round is lost and cancelled: released where it was granted; or, if any node did
//!    not respond, released on all nodes with a tombstone.
//!
//! **Invariants.**
//! - *One holder, or readers*, as long as fewer than half of the nodes forget what they granted:
//!   two majorities share a node, which grants no claim beside a writer. A node that was started
//!   less than the longest lease ago does not count, since it may have forgotten.
//! - *Tokens grow*: a later majority shares a node with the one on which the token was raised, and
//!   that node gives a higher one. Without step 2, a node with a clock ahead that comes and goes
//!   would make tokens go back.
//! - The lease counts from before the first request, less what clocks may differ ([`valid_ttl`]).
//!
//! **The race that tombstones prevent.** A request of a lost round may arrive late and hold a node
//! for a claim that has cancelled that round. So such a round is refused on all nodes from then on.
//! Its owner id is refused with it: the next round of the claim uses another one (see `rounds`).

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;

use super::Redlock;
use super::quorum::{Quorum, kept_ttl, random_pause, valid_ttl};
use super::release::{cancel_round, write_missing_tombstones};
use crate::backend::{Attempt, Backend, Busy, Claim, Grant, Mode};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// Carries out one round.
pub(super) async fn try_acquire(redlock: &Redlock, claim: &Claim) -> Result<Attempt<Grant>> {
    let Redlock { quorum, rounds } = redlock;
    let mut request = rounds.current(claim);
    if claim.fixed {
        request.ttl = kept_ttl(claim.ttl);
    }
    // What an earlier round may have left on a node would hold against this one. Both go over the
    // same connections in this order, and a silent node is waited for once.
    let tombstones = write_missing_tombstones(redlock, claim);
    let (_, votes) = tokio::join!(biased; tombstones, collect_votes(quorum, &request));
    rounds.requested(claim.owner, votes.is_any_unknown());
    let won = votes.granted() >= quorum.majority();
    let Some(token) = votes.token().filter(|_| won) else {
        let lost = rounds.lost(claim.owner, votes.busy_nodes(), votes.holder());
        let outcome = votes.outcome(&claim.key, quorum.majority(), lost);
        cancel_lost_round(redlock, claim, &request, &votes).await;
        return outcome;
    };
    let raised = raise_token(quorum, &request, token, &votes).await;
    if raised < quorum.majority() {
        cancel_round(redlock, claim).await;
        let message = format!("`{}` was won, but its token not raised on a majority", claim.key);
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    // The engine counts from before the first request, and refuses what is nearly over.
    let ttl = valid_ttl(request.ttl).min(claim.ttl);
    Ok(Attempt::Granted(match claim.mode {
        Mode::Exclusive => Grant::with_range(token, ttl),
        _ => Grant::new(token, ttl),
    }))
}

async fn cancel_lost_round(redlock: &Redlock, claim: &Claim, request: &Claim, votes: &Votes) {
    // An earlier request of the same round may be under way as well.
    if votes.is_any_unknown() || request.unconfirmed {
        cancel_round(redlock, claim).await;
    } else {
        release_granted(&redlock.quorum, request, votes).await;
    }
}

/// Requests the lock from all nodes.
async fn collect_votes(quorum: &Quorum, request: &Claim) -> Votes {
    let votes = join_all(quorum.nodes().iter().map(|node| async {
        let vote = async {
            let attempt = node.redis.try_acquire(request).await?;
            let counts = quorum.counts(node).await?;
            Ok(Vote { attempt, counts })
        };
        quorum.bounded(node, vote).await
    }));
    Votes(votes.await)
}

/// Raises the token on the nodes that granted. Returns on how many nodes that count it was done.
async fn raise_token(
    quorum: &Quorum,
    request: &Claim,
    token: FencingToken,
    votes: &Votes,
) -> usize {
    let raised = join_all(quorum.nodes().iter().zip(&votes.0).map(|(node, vote)| async move {
        match vote {
            Ok(vote) if vote.is_granted() => {
                let raised = quorum.bounded(node, node.raise_token(request, token)).await;
                raised.unwrap_or(false) && vote.counts
            }
            _ => false,
        }
    }));
    raised.await.into_iter().filter(|raised| *raised).count()
}

/// Releases where it was granted; elsewhere the claim keeps its queue entry.
async fn release_granted(quorum: &Quorum, request: &Claim, votes: &Votes) {
    let voted = quorum.nodes().iter().zip(&votes.0);
    let granted = voted.filter(|(_, vote)| vote.as_ref().is_ok_and(Vote::is_granted));
    let released = granted.map(|(node, _)| quorum.bounded(node, node.redis.release(request)));
    // On a node that does not respond it ends with its lease.
    drop(join_all(released).await);
}

/// The response of one node, and whether the node counts.
struct Vote {
    attempt: Attempt<Grant>,
    counts: bool,
}

impl Vote {
    fn is_granted(&self) -> bool {
        matches!(self.attempt, Attempt::Granted(_))
    }
}

/// The responses of all nodes to one round.
struct Votes(Vec<Result<Vote>>);

impl Votes {
    /// How many nodes that count have granted it.
    fn granted(&self) -> usize {
        let granted = |vote: &&Vote| vote.counts && vote.is_granted();
        self.0.iter().flatten().filter(granted).count()
    }

    /// The highest token that any node gave.
    fn token(&self) -> Option<FencingToken> {
        let token = |vote: &Vote| match &vote.attempt {
            Attempt::Granted(grant) => Some(grant.token),
            Attempt::Busy(_) => None,
        };
        self.0.iter().flatten().filter_map(token).max()
    }

    /// Whether a request may still be under way to a node.
    fn is_any_unknown(&self) -> bool {
        self.0.iter().any(Result::is_err)
    }

    /// The nodes that were busy.
    fn busy_nodes(&self) -> Vec<usize> {
        let busy = |vote: &Result<Vote>| vote.as_ref().is_ok_and(|vote| !vote.is_granted());
        let votes = self.0.iter().enumerate();
        votes.filter(|(_, vote)| busy(vote)).map(|(number, _)| number).collect()
    }

    /// The holder that most of them named. Other claims that lost this round held a node for a
    /// moment, and are no reason to recheck.
    fn holder(&self) -> Option<String> {
        let mut named = BTreeMap::<String, usize>::new();
        for vote in self.0.iter().flatten() {
            if let Attempt::Busy(Busy { holder: Some(holder), .. }) = &vote.attempt {
                let token = holder.token.map_or_else(String::new, |token| token.to_string());
                *named.entry(format!("{token} {}", holder.owner)).or_default() += 1;
            }
        }
        named.into_iter().max_by_key(|(_, count)| *count).map(|(holder, _)| holder)
    }

    /// The result of a round that was lost, and so many before it to the same holder.
    fn outcome(&self, key: &Key, majority: usize, lost: u32) -> Result<Attempt<Grant>> {
        // An error that another request would get as well.
        let refused = |error: &&Error| error.kind() != ErrorKind::Unavailable;
        let errors = self.0.iter().filter_map(|vote| vote.as_ref().err());
        if let Some(error) = errors.clone().find(refused) {
            return Err(error.clone());
        }
        let counting = self.0.iter().flatten().filter(|vote| vote.counts).count();
        if counting < majority {
            let all = self.0.len();
            let count = format!("{counting} of {all} nodes count, and {majority} are needed");
            let young = "one that was just started counts after `longest`";
            let error = Error::new(ErrorKind::Unavailable, format!("`{key}`: {count}; {young}"));
            return Err(match errors.clone().next() {
                Some(source) => error.with_source(source.clone()),
                None => error,
            });
        }
        Ok(Attempt::Busy(self.busy(key, lost)))
    }

    fn busy(&self, key: &Key, lost: u32) -> Busy {
        let busy = self.0.iter().flatten().filter_map(|vote| match &vote.attempt {
            Attempt::Busy(busy) => Some(busy),
            Attempt::Granted(_) => None,
        });
        let busy: Vec<&Busy> = busy.collect();
        let mut merged = Busy::new(key.clone());
        merged.holder = busy.iter().find_map(|busy| busy.holder.clone());
        merged.holders = busy.iter().map(|busy| busy.holders).max().unwrap_or_default();
        merged.ahead = busy.iter().filter_map(|busy| busy.ahead).max();
        let retry_after = busy.iter().filter_map(|busy| busy.retry_after).min();
        // Claims that lost a tie must not try again at the same moment, but soon. If the same
        // holder wins after each round, it is no tie: some node has lost its lock.
        merged.retry_after = match self.token() {
            Some(_) => Some(random_pause(5, 100, lost).min(retry_after.unwrap_or(Duration::MAX))),
            None => retry_after,
        };
        merged
    }
}
