//! What is remembered of a claim from round to round.
//!
//! A claim that waits tries one round after the other. A round that was cancelled while a node had
//! not responded leaves tombstones for its owner id, so that the next round needs another one: the
//! number of the claim plus the round times 2^40. Here stands which round it is, and which
//! tombstones are still missing.

use std::collections::HashMap;

use crate::backend::{Claim, Owner};
use crate::support::sync::Mutex;

/// More missing tombstones than this of one claim are left to the end of their leases.
const MISSING_MAX: usize = 256;

/// All claims that were requested and not released yet.
#[derive(Debug, Default)]
pub(super) struct Rounds(Mutex<HashMap<Owner, ClaimRounds>>);

/// The rounds of one claim.
#[derive(Debug, Default)]
struct ClaimRounds {
    /// The number of the current round, which is part of the claim's name on the nodes.
    current: u64,
    /// A node did not respond to a request of this round, which may still arrive.
    unconfirmed: bool,
    /// Cancelled rounds and the nodes that may still get a request of them and are not known to
    /// have a tombstone.
    missing_tombstones: Vec<(u64, usize)>,
    /// The nodes that were busy in the last round.
    busy: Vec<usize>,
    /// The holder that most of them named, and how many rounds in a row were lost to it.
    holder: Option<String>,
    lost: u32,
}

/// A tombstone that a node should have and may not: for the claim of a cancelled round, as a
/// release has to name it.
#[derive(Debug)]
pub(super) struct MissingTombstone {
    pub(super) claim: Claim,
    pub(super) node: usize,
}

impl Rounds {
    /// The claim as the nodes know it in the current round.
    pub(super) fn current(&self, claim: &Claim) -> Claim {
        let claims = self.0.lock();
        let rounds = claims.get(&claim.owner);
        let mut named = of_round(claim, rounds.map_or(0, |rounds| rounds.current));
        named.unconfirmed |= rounds.is_some_and(|rounds| rounds.unconfirmed);
        named
    }

    /// All nodes were sent a request of the current round; `unconfirmed` if one did not respond.
    pub(super) fn requested(&self, owner: Owner, unconfirmed: bool) {
        self.0.lock().entry(owner).or_default().unconfirmed |= unconfirmed;
    }

    /// A round was lost at these nodes, mostly to this holder. Returns how many rounds before it
    /// were lost to the same one.
    pub(super) fn lost(&self, owner: Owner, busy: Vec<usize>, holder: Option<String>) -> u32 {
        let mut claims = self.0.lock();
        let rounds = claims.entry(owner).or_default();
        let same = rounds.holder.is_some() && rounds.holder == holder;
        rounds.lost = if same { rounds.lost.saturating_add(1) } else { 0 };
        rounds.busy = busy;
        rounds.holder = holder;
        rounds.lost
    }

    /// The nodes that were busy in the last round, if there was one, and how many rounds were lost
    /// before it.
    pub(super) fn last_lost(&self, owner: Owner) -> Option<(Vec<usize>, u32)> {
        self.0.lock().get(&owner).map(|rounds| (rounds.busy.clone(), rounds.lost))
    }

    /// The current round is about to be cancelled on so many nodes: its name is not used again.
    /// Returns the tombstones that they should get.
    pub(super) fn cancel_current(&self, claim: &Claim, nodes: usize) -> Vec<MissingTombstone> {
        let mut claims = self.0.lock();
        let rounds = claims.entry(claim.owner).or_default();
        let cancelled = rounds.current;
        let missing = &mut rounds.missing_tombstones;
        missing.extend((0..nodes).map(|node| (cancelled, node)));
        let beyond = missing.len().saturating_sub(MISSING_MAX);
        missing.drain(..beyond);
        rounds.current = cancelled + 1;
        rounds.unconfirmed = false;
        (0..nodes).map(|node| MissingTombstone::new(claim, cancelled, node)).collect()
    }

    /// The tombstones that nodes should have and may not.
    pub(super) fn missing_tombstones(&self, claim: &Claim) -> Vec<MissingTombstone> {
        let claims = self.0.lock();
        let missing = claims.get(&claim.owner).map_or(&[][..], |rounds| &rounds.missing_tombstones);
        missing.iter().map(|(round, node)| MissingTombstone::new(claim, *round, *node)).collect()
    }

    /// These names have a tombstone on these nodes.
    pub(super) fn tombstones_written(&self, owner: Owner, written: &[(Owner, usize)]) {
        if let Some(rounds) = self.0.lock().get_mut(&owner) {
            let is_missing =
                |(round, node): &(u64, usize)| !written.contains(&(name(owner, *round), *node));
            rounds.missing_tombstones.retain(is_missing);
        }
    }

    /// The claim was released.
    pub(super) fn forget(&self, owner: Owner) {
        self.0.lock().remove(&owner);
    }
}

impl MissingTombstone {
    fn new(claim: &Claim, round: u64, node: usize) -> MissingTombstone {
        let claim = Claim { unconfirmed: true, ..of_round(claim, round) };
        MissingTombstone { claim, node }
    }
}

fn of_round(claim: &Claim, round: u64) -> Claim {
    Claim { owner: name(claim.owner, round), ..claim.clone() }
}

/// A client makes far fewer than 2^40 claims.
fn name(owner: Owner, round: u64) -> Owner {
    Owner::new(owner.client(), owner.number() | (round << 40))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::key::Key;

    fn claim() -> Claim {
        let owner = Owner::new([7; 16], 3);
        Claim::new(Key::new("k").unwrap(), owner, Duration::from_secs(1))
    }

    #[test]
    fn a_name_changes_before_a_round_is_cancelled() {
        let rounds = Rounds::default();
        let claim = claim();
        let first = rounds.current(&claim).owner;
        let missing = rounds.cancel_current(&claim, 3);
        assert_ne!(rounds.current(&claim).owner, first, "a release may arrive that was dropped");
        let refuses_late =
            |one: &MissingTombstone| one.claim.owner == first && one.claim.unconfirmed;
        assert!(missing.iter().all(refuses_late), "{missing:?}");
        assert_eq!(rounds.missing_tombstones(&claim).len(), 3, "no node has responded yet");
        rounds.tombstones_written(claim.owner, &[(first, 0), (first, 2)]);
        let left: Vec<usize> =
            rounds.missing_tombstones(&claim).iter().map(|missing| missing.node).collect();
        assert_eq!(left, [1]);
        rounds.forget(claim.owner);
        assert!(rounds.missing_tombstones(&claim).is_empty());
    }

    #[test]
    fn rounds_lost_to_the_same_holder_are_counted() {
        let rounds = Rounds::default();
        let owner = claim().owner;
        let lost = |holder: Option<&str>| rounds.lost(owner, vec![1], holder.map(str::to_owned));
        assert_eq!([lost(Some("a")), lost(Some("a")), lost(Some("a"))], [0, 1, 2]);
        assert_eq!([lost(Some("b")), lost(Some("b"))], [0, 1]);
        assert_eq!([lost(None), lost(None)], [0, 0], "no holder is the same");
        assert_eq!(rounds.last_lost(owner), Some((vec![1], 0)));
    }
}
