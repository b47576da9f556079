//! The nodes together: every question goes to all of them at once, and the answers are counted.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use futures_util::future::join_all;

use super::{Redis, kept, valid};
use crate::backend::{Backend, Claim, Grant, Owner, Scope};
use crate::backends::redis::Shown;
use crate::claim::{Attempt, Busy};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// The nodes, and what makes one count.
pub(super) struct Quorum {
    pub(super) nodes: Vec<Redis>,
    /// How long to wait for one node's answer.
    pub(super) patience: Duration,
    /// The longest lease that anybody uses here.
    pub(super) longest: Duration,
    /// Whether a node may forget a lock by a restart.
    pub(super) forgets: bool,
}

impl Quorum {
    /// A majority.
    pub(super) fn needed(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// A lease has to outlast a few rounds.
    pub(super) fn shortest(&self) -> Duration {
        self.patience.saturating_mul(4).max(Duration::from_millis(50))
    }

    /// A pause that is seldom twice the same, so that two do not try at the same moment; long
    /// enough that a crowd of waiters does not keep the nodes busy. It grows with the rounds that
    /// were lost to the same holder.
    pub(super) fn pause(&self, lost: u32) -> Duration {
        random(50, 150, lost)
    }

    /// Connects to all; most have to be there.
    pub(super) async fn reach(&self) -> Result<()> {
        let answers = join_all(self.nodes.iter().map(Redis::reach)).await;
        let reached = answers.iter().filter(|answer| answer.is_ok()).count();
        if reached >= self.needed() {
            return Ok(());
        }
        Err(answers.into_iter().find_map(Result::err).unwrap_or_else(|| unavailable("redlock")))
    }

    /// Asks all nodes for the lock.
    pub(super) async fn take(&self, claim: &Claim) -> Votes {
        let answers = join_all(self.nodes.iter().map(|node| async {
            let asked = async {
                let attempt = node.try_acquire(claim).await?;
                let steady = !self.forgets || node.has_run_for(kept(self.longest)).await?;
                Ok(Vote { attempt, steady })
            };
            self.bounded(node, asked).await
        }));
        Votes(answers.await)
    }

    /// Raises the token on the nodes that granted; on how many that count was it done?
    pub(super) async fn raise(&self, claim: &Claim, token: FencingToken, votes: &Votes) -> usize {
        let raised = join_all(self.nodes.iter().zip(&votes.0).map(|(node, vote)| async move {
            match vote {
                Ok(vote) if vote.is_granted() => {
                    self.bounded(node, node.raise(claim, token)).await.unwrap_or(false)
                        && vote.steady
                }
                _ => false,
            }
        }));
        raised.await.into_iter().filter(|raised| *raised).count()
    }

    /// Renews on all nodes; most have to.
    pub(super) async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        let all = join_all(self.nodes.iter().map(|node| async {
            let renewing = async { Ok(node.renew(claims).await) };
            self.bounded(node, renewing).await.unwrap_or_default()
        }));
        let all = all.await;
        let one = |(number, claim): (usize, &Claim)| {
            let answers: Vec<_> = all.iter().filter_map(|answers| answers.get(number)).collect();
            self.renewed(claim, &answers)
        };
        claims.iter().enumerate().map(one).collect()
    }

    fn renewed(&self, claim: &Claim, answers: &[&Result<Duration>]) -> Result<Duration> {
        let kept = answers.iter().filter(|answer| answer.is_ok()).count();
        if kept >= self.needed() {
            return Ok(valid(claim.ttl));
        }
        let lost: Vec<&Error> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
        let lost = lost.into_iter().filter(|error| error.kind() == ErrorKind::Lost);
        let lost: Vec<&Error> = lost.collect();
        // Even if all who did not answer still have it, it is no majority.
        match lost.first() {
            Some(error) if lost.len() > self.nodes.len() - self.needed() => Err((*error).clone()),
            _ => Err(unavailable(claim.key.as_str())),
        }
    }

    /// Gives back, or withdraws, on all nodes.
    pub(super) async fn release(&self, claim: &Claim) -> Released {
        let asked = join_all(self.nodes.iter().map(|node| self.bounded(node, node.release(claim))));
        Released(asked.await)
    }

    /// Buries claims of which a request may still arrive, each at its node. Which could not be?
    pub(super) async fn bury(&self, late: &[(Claim, usize)]) -> Vec<(Owner, usize)> {
        let buried = join_all(late.iter().map(|(claim, node)| async move {
            let node = &self.nodes[*node];
            self.bounded(node, node.release(claim)).await.is_ok()
        }));
        let left = late.iter().zip(buried.await).filter(|(_, buried)| !*buried);
        left.map(|((claim, node), _)| (claim.owner, *node)).collect()
    }

    /// Gives back where it was granted; elsewhere the claim keeps its place.
    pub(super) async fn release_granted(&self, claim: &Claim, votes: &Votes) {
        let voted = self.nodes.iter().zip(&votes.0);
        let granted = voted.filter(|(_, vote)| vote.as_ref().is_ok_and(Vote::is_granted));
        let released = granted.map(|(node, _)| self.bounded(node, node.release(claim)));
        // A node that does not answer lets it expire.
        drop(join_all(released).await);
    }

    /// Ends this grant on all nodes, telling its holder where the node knows its token.
    pub(super) async fn evict(&self, key: &Key, token: FencingToken, owner: Owner) -> Result<bool> {
        let claim = Claim::new(key.clone(), owner, self.longest);
        let evicted = join_all(self.nodes.iter().map(|node| async {
            let evicted = self.bounded(node, node.evict(key, token)).await?;
            Ok(evicted || self.bounded(node, node.release(&claim)).await?)
        }));
        Released(evicted.await).decide(self.needed(), key)
    }

    /// What the nodes show; most have to answer.
    pub(super) async fn seen(&self, scope: Scope<'_>) -> Result<Vec<BTreeMap<Key, Shown>>> {
        let seen = join_all(self.nodes.iter().map(|node| node.seen(scope))).await;
        let (seen, failed): (Vec<_>, Vec<_>) = seen.into_iter().partition(Result::is_ok);
        if seen.len() < self.needed() {
            let error = failed.into_iter().find_map(Result::err);
            return Err(error.unwrap_or_else(|| unavailable("redlock")));
        }
        Ok(seen.into_iter().flatten().collect())
    }
}

impl Quorum {
    /// One node's answer, awaited for no longer than a node may take.
    async fn bounded<T>(&self, node: &Redis, answer: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = self.patience;
        tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| {
            let message = format!("no answer from {node:?} within {limit:?}");
            Err(Error::new(ErrorKind::Unavailable, message))
        })
    }
}

/// What one node says to a request, and whether it may.
pub(super) struct Vote {
    attempt: Attempt<Grant>,
    steady: bool,
}

impl Vote {
    fn is_granted(&self) -> bool {
        matches!(self.attempt, Attempt::Granted(_))
    }
}

/// What all nodes say to a request.
pub(super) struct Votes(Vec<Result<Vote>>);

impl Votes {
    /// How many that count have granted it.
    pub(super) fn granted(&self) -> usize {
        let granted = |vote: &&Vote| vote.steady && vote.is_granted();
        self.0.iter().flatten().filter(granted).count()
    }

    /// The highest token that any node gave.
    pub(super) fn token(&self) -> Option<FencingToken> {
        let token = |vote: &Vote| match &vote.attempt {
            Attempt::Granted(grant) => Some(grant.token),
            Attempt::Busy(_) => None,
        };
        self.0.iter().flatten().filter_map(token).max()
    }

    /// Whether a request may still be under way to a node.
    pub(super) fn unsure(&self) -> bool {
        self.0.iter().any(Result::is_err)
    }

    /// The nodes that said busy.
    pub(super) fn busy(&self) -> Vec<usize> {
        let busy = |vote: &Result<Vote>| vote.as_ref().is_ok_and(|vote| !vote.is_granted());
        let votes = self.0.iter().enumerate();
        votes.filter(|(_, vote)| busy(vote)).map(|(number, _)| number).collect()
    }

    /// The holder that most of them named. Others who lost this round held a node for a moment, and
    /// are no reason to look again.
    pub(super) fn holder(&self) -> Option<String> {
        let mut named = BTreeMap::<String, usize>::new();
        for vote in self.0.iter().flatten() {
            if let Attempt::Busy(Busy { holder: Some(holder), .. }) = &vote.attempt {
                let token = holder.token.map_or_else(String::new, |token| token.to_string());
                *named.entry(format!("{token} {}", holder.name)).or_default() += 1;
            }
        }
        named.into_iter().max_by_key(|(_, count)| *count).map(|(holder, _)| holder)
    }

    /// What to tell whoever asked, when it was not won, and so often before lost to the same one.
    pub(super) fn outcome(&self, key: &Key, needed: usize, lost: u32) -> Result<Attempt<Grant>> {
        let steady = self.0.iter().flatten().filter(|vote| vote.steady).count();
        let busy = self.0.iter().flatten().filter_map(|vote| match &vote.attempt {
            Attempt::Busy(busy) => Some(busy),
            Attempt::Granted(_) => None,
        });
        let busy: Vec<&Busy> = busy.collect();
        // Something that asking again does not mend.
        let refused = |error: &&Error| error.kind() != ErrorKind::Unavailable;
        let errors = self.0.iter().filter_map(|vote| vote.as_ref().err());
        if let Some(error) = errors.clone().find(refused) {
            return Err(error.clone());
        }
        if steady < needed {
            let all = self.0.len();
            let count = format!("{steady} of {all} nodes count, and {needed} are needed");
            let young = "one that was just started counts after `longest`";
            let error = Error::new(ErrorKind::Unavailable, format!("`{key}`: {count}; {young}"));
            return Err(match errors.clone().next() {
                Some(source) => error.with_source(source.clone()),
                None => error,
            });
        }
        let mut answer = Busy::new(key.clone());
        answer.holder = busy.iter().find_map(|busy| busy.holder.clone());
        answer.ahead = busy.iter().filter_map(|busy| busy.ahead).max();
        let retry = busy.iter().filter_map(|busy| busy.retry_after).min();
        // Who lost a tie must not try again at the same moment as the other, and soon. But if the
        // same one holds after each round, it is no tie: some node has lost its lock.
        answer.retry_after = match self.token() {
            Some(_) => Some(random(5, 100, lost).min(retry.unwrap_or(Duration::MAX))),
            None => retry,
        };
        Ok(Attempt::Busy(answer))
    }
}

/// What all nodes say to a release.
pub(super) struct Released(Vec<Result<bool>>);

impl Released {
    /// Whether it was held, if enough nodes answered to know.
    pub(super) fn decide(self, needed: usize, key: &Key) -> Result<bool> {
        let held = self.0.iter().flatten().filter(|held| **held).count();
        let silent = self.0.iter().filter(|answer| answer.is_err()).count();
        if held >= needed {
            return Ok(true);
        }
        // With the silent ones it may have been held: that is doubt, not a no.
        if held + silent < needed {
            return Ok(false);
        }
        Err(self.0.into_iter().find_map(Result::err).unwrap_or_else(|| unavailable(key.as_str())))
    }
}

/// Between these milliseconds at random, twice as long for each of the first five of so many.
fn random(from: u64, to: u64, doubled: u32) -> Duration {
    let span = from + RandomState::new().hash_one(doubled) % (to - from);
    Duration::from_millis(span << doubled.min(5))
}

pub(super) fn unavailable(what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("`{what}`: too few nodes answer"))
}
