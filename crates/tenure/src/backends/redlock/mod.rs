//! Redlock: a lock is held by whoever holds it on most of several masters that know nothing of each
//! other. See `docs/backends/redlock.md`.
//!
//! Beyond the published algorithm: the token is raised on a majority before a grant is handed out,
//! so that tokens grow from grant to grant; and a node that may have forgotten a lock by a restart
//! does not count.

mod people;
mod quorum;
mod rounds;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use self::quorum::{Quorum, Votes, unavailable};
use self::rounds::Rounds;
use super::redis::{Redis, nodes, settings};
use crate::backend::{Backend, Claim, Fencing, Grant, Info, Order, Owner, Scope};
use crate::claim::{Attempt, Holding};
use crate::error::{Error, ErrorKind, Result};
use crate::finding::{Finding, Grade};
use crate::key::Key;
use crate::options::Options;
use crate::token::FencingToken;

/// Opens `redlock://h1,h2,h3,h4,h5`.
pub(crate) async fn open(mut options: Options) -> Result<Redlock> {
    let longest = settings::duration(&mut options, "longest", LONGEST, MONTH)?;
    let forgets = options.take_word("nodes", &["volatile", "durable"])? != Some("durable");
    let patience = settings::response(&mut options, PATIENCE)?;
    let nodes = nodes(&mut options)?;
    options.finish()?;
    let redlock =
        Redlock { quorum: Quorum { nodes, patience, longest, forgets }, rounds: Rounds::default() };
    redlock.quorum.reach().await?;
    Ok(redlock)
}

/// Locks on a majority of independent Redis masters. Opened by URL; see `docs/backends/redlock.md`.
///
/// # Examples
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("redlock://a.example,b.example,c.example?longest=30s").await?;
/// let guard = locks.lock("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub struct Redlock {
    quorum: Quorum,
    /// Under which name a claim is known to the nodes.
    rounds: Rounds,
}

impl Redlock {
    /// One round: ask all, count, raise the token, and undo it all if anything was missing.
    async fn round(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        let mut asked = self.rounds.claim(claim);
        if claim.fixed {
            asked.ttl = kept(claim.ttl);
        }
        // An earlier round that hung with a node would else hold against this one. Both go over the
        // same connections in this order, and a silent node is waited for once.
        let settle = self.settle(claim);
        let (_few, votes) = tokio::join!(biased; settle, self.quorum.take(&asked));
        self.rounds.asked(claim.owner, votes.unsure());
        let Some(token) = votes.token().filter(|_| votes.granted() >= self.quorum.needed()) else {
            let lost = self.rounds.lost(claim.owner, votes.busy(), votes.holder());
            let outcome = votes.outcome(&claim.key, self.quorum.needed(), lost);
            self.undo(claim, &asked, &votes).await;
            return outcome;
        };
        let raised = self.quorum.raise(&asked, token, &votes).await;
        if raised < self.quorum.needed() {
            self.start_over(claim).await;
            let message =
                format!("`{}` was won, but its token not raised on a majority", claim.key);
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        // The core counts from before the first question and refuses what is nearly over.
        Ok(Attempt::Granted(Grant::new(token, valid(asked.ttl).min(claim.ttl))))
    }

    /// Takes a lost round back.
    async fn undo(&self, claim: &Claim, asked: &Claim, votes: &Votes) {
        // An earlier request of the same round may be under way as well.
        if votes.unsure() || asked.doubtful {
            self.start_over(claim).await;
        } else {
            self.quorum.release_granted(asked, votes).await;
        }
    }

    /// A node may still get a late request of this round: it is refused everywhere from now on, and
    /// the next round is made under another name. A node that does not answer is told later.
    ///
    /// The name changes before anything is sent: this may be dropped while it waits, and releases
    /// that nobody waits for may arrive all the same, and refuse the old name.
    async fn start_over(&self, claim: &Claim) {
        let late = self.rounds.undone(claim, self.quorum.nodes.len());
        self.bury(claim, late).await;
    }

    /// Tells the nodes that these are over. Which could not be told?
    async fn bury(&self, claim: &Claim, late: Vec<(Claim, usize)>) -> Vec<(Owner, usize)> {
        let left = self.quorum.bury(&late).await;
        let told = late.iter().map(|(claim, node)| (claim.owner, *node));
        let told: Vec<_> = told.filter(|one| !left.contains(one)).collect();
        self.rounds.settled(claim.owner, &told);
        left
    }

    /// Tells the nodes that were silent when a round of this claim was undone. Whether so few are
    /// left that what they may hold under an old name keeps nobody from the lock.
    async fn settle(&self, claim: &Claim) -> bool {
        let late = self.rounds.unsettled(claim);
        if late.is_empty() {
            return true;
        }
        let left = self.bury(claim, late).await;
        let mut nodes: Vec<usize> = left.into_iter().map(|(_, node)| node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.len() <= self.quorum.nodes.len() - self.quorum.needed()
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock").field("nodes", &self.quorum.nodes).finish()
    }
}

#[async_trait]
impl Backend for Redlock {
    fn info(&self) -> Info {
        let mut info = Info::new("redlock");
        // As on one node: where a majority forgets, only wall clocks keep tokens growing.
        info.fencing = Fencing::BestEffort;
        info.order = Order::Any;
        info.min_ttl = self.quorum.shortest();
        if self.quorum.forgets {
            info.max_ttl = self.quorum.longest;
        }
        info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        self.round(claim).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        let asked: Vec<Claim> = claims.iter().map(|claim| self.rounds.claim(claim)).collect();
        self.quorum.renew(&asked).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        let released = self.quorum.release(&self.rounds.claim(claim)).await;
        let settled = self.settle(claim).await;
        let held = released.decide(self.quorum.needed(), &claim.key)?;
        if !settled {
            return Err(unavailable(claim.key.as_str()));
        }
        // Not before: a claim that was lost is released too, under the name that the nodes know.
        self.rounds.end(claim.owner);
        Ok(held)
    }

    /// Most nodes that were busy should say that it is free, since the first to say so is alone
    /// with it for a moment. But they may not agree who is first: a waiter that hears of it from
    /// some tries a little later. A node that was not busy has nothing to say: there the lock was
    /// free all the time, because it lost it, or because the holder won without it.
    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        let asked = self.rounds.claim(claim);
        let all = || ((0..self.quorum.nodes.len()).collect(), 0);
        let waits = self.rounds.waits(claim.owner);
        // Who only watches has not asked: a node that is free says so at once, and one is not
        // enough.
        let first = if waits.is_some() { 1 } else { self.quorum.needed() };
        let (busy, lost): (Vec<usize>, u32) = waits.unwrap_or_else(all);
        let mut hints: FuturesUnordered<_> =
            busy.iter().map(|node| self.quorum.nodes[*node].until_free(&asked)).collect();
        for _ in 0..first {
            if hints.next().await.is_none() {
                // The time will tell.
                return std::future::pending().await;
            }
        }
        let most = async {
            for _ in first..busy.len() / 2 + 1 {
                hints.next().await;
            }
        };
        // Either way it is time to ask.
        let _agreed = tokio::time::timeout(self.quorum.pause(lost), most).await.is_ok();
        None
    }

    async fn until_lost(&self, claim: &Claim) {
        let asked = self.rounds.claim(claim);
        let mut hints: FuturesUnordered<_> =
            self.quorum.nodes.iter().map(|node| node.until_lost(&asked)).collect();
        hints.next().await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        let seen = self.quorum.seen(scope).await?;
        Ok(people::holdings(seen, self.quorum.needed()))
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        let seen = self.quorum.seen(Scope::Key(key)).await?;
        match people::owner_of(seen, key, token, self.quorum.needed()) {
            Some(owner) => self.quorum.evict(key, token, owner).await,
            None => Ok(false),
        }
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        let (mut findings, all) = (Vec::new(), self.quorum.nodes.len());
        let mut count = 0;
        for (number, node) in self.quorum.nodes.iter().enumerate() {
            let steady = !self.quorum.forgets
                || node.has_run_for(kept(self.quorum.longest)).await.unwrap_or(false);
            count += usize::from(steady);
            let name = format!("node {}", number + 1);
            match node.examine().await {
                Ok(found) => findings.extend(found.into_iter().map(|mut finding| {
                    finding.subject = format!("{name}: {}", finding.subject);
                    finding
                })),
                Err(error) => {
                    let finding = Finding::new(Grade::Warning, name, error.to_string());
                    findings.push(finding.advise("start it, or mend the way to it"));
                }
            }
        }
        findings.insert(0, quorum_found(count, all, self.quorum.needed()));
        Ok(findings)
    }
}

fn quorum_found(count: usize, all: usize, needed: usize) -> Finding {
    let detail = format!("{count} of {all} nodes count, {needed} are needed");
    match count >= needed {
        true if count == all => Finding::good("quorum", detail),
        true => Finding::new(Grade::Notice, "quorum", detail).advise("start the others"),
        false => Finding::new(Grade::Fault, "quorum", detail)
            .advise("start the others; one that was just started counts after `longest`"),
    }
}

/// The examples of the user's page are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../../docs/backends/redlock.md")]
struct Page;

/// How long a grant counts: the nodes' clocks may run at slightly different speeds.
fn valid(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
}

/// For how long the nodes are asked to keep a lease so that this much of it counts.
fn kept(ttl: Duration) -> Duration {
    ttl.saturating_add(ttl / 50 + Duration::from_millis(4))
}

/// Longer leases than this are none.
const MONTH: Duration = Duration::from_secs(31 * 24 * 60 * 60);
/// The longest lease that anybody uses on these nodes, unless the URL says otherwise.
const LONGEST: Duration = Duration::from_secs(60);
/// How long to wait for one node: far less than a lease, so that a dead one costs little.
const PATIENCE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_for_a_fixed_lease_counts_for_all_of_it() {
        for ms in [1, 50, 999, 30_000, 86_400_000] {
            let ttl = Duration::from_millis(ms);
            assert!(valid(kept(ttl)) >= ttl, "{ttl:?}");
        }
    }

    #[tokio::test]
    async fn a_time_that_nobody_waits_is_refused() {
        for option in ["response=60000000000000d", "connect=2h", "longest=32d", "response=0s"] {
            let url = format!("redlock://127.0.0.1:1?nodes=durable&{option}");
            let error = open(Options::parse(&url).unwrap()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{option}: {error}");
        }
    }
}
