//! What is remembered of a claim from round to round.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::{Claim, Owner};

/// All claims that were asked for and not released yet.
#[derive(Debug, Default)]
pub(super) struct Rounds(Mutex<HashMap<Owner, Known>>);

/// What is known of one claim.
#[derive(Debug, Default)]
struct Known {
    /// The claim's name on the nodes: it changes after a round that was undone in doubt, since the
    /// old one is refused wherever a tombstone lies.
    round: u64,
    /// A node did not answer a request of this round, which may still arrive.
    unsure: bool,
    /// Earlier rounds and the nodes that may still get a request of theirs and have no tombstone.
    unsettled: Vec<(u64, usize)>,
    /// The nodes that were busy in the last round.
    busy: Vec<usize>,
    /// The holder that most of them named, and how many rounds in a row were lost to it.
    holder: Option<String>,
    lost: u32,
}

impl Rounds {
    /// The claim as the nodes know it.
    pub(super) fn claim(&self, claim: &Claim) -> Claim {
        let all = self.all();
        let known = all.get(&claim.owner);
        let mut asked = named(claim, known.map_or(0, |known| known.round));
        asked.doubtful |= known.is_some_and(|known| known.unsure);
        asked
    }

    /// A round was asked for: did a node not answer?
    pub(super) fn asked(&self, owner: Owner, unsure: bool) {
        self.all().entry(owner).or_default().unsure |= unsure;
    }

    /// A round was lost at these nodes, mostly to this holder. How often was it lost to the same
    /// one before?
    pub(super) fn lost(&self, owner: Owner, busy: Vec<usize>, holder: Option<String>) -> u32 {
        let mut all = self.all();
        let known = all.entry(owner).or_default();
        let same = known.holder.is_some() && known.holder == holder;
        known.lost = if same { known.lost.saturating_add(1) } else { 0 };
        (known.busy, known.holder) = (busy, holder);
        known.lost
    }

    /// The nodes that were busy in the last round, if there was one, and how often it was lost.
    pub(super) fn waits(&self, owner: Owner) -> Option<(Vec<usize>, u32)> {
        self.all().get(&owner).map(|known| (known.busy.clone(), known.lost))
    }

    /// A round is about to be undone on so many nodes: its name is not used again. What each of
    /// them has to be told.
    pub(super) fn undone(&self, claim: &Claim, nodes: usize) -> Vec<(Claim, usize)> {
        let mut all = self.all();
        let known = all.entry(claim.owner).or_default();
        let round = known.round;
        known.unsettled.extend((0..nodes).map(|node| (round, node)));
        let beyond = known.unsettled.len().saturating_sub(UNSETTLED_MAX);
        known.unsettled.drain(..beyond);
        (known.round, known.unsure) = (round + 1, false);
        (0..nodes).map(|node| (late(claim, round), node)).collect()
    }

    /// The names under which a late request may still arrive, and where.
    pub(super) fn unsettled(&self, claim: &Claim) -> Vec<(Claim, usize)> {
        let all = self.all();
        let rounds = all.get(&claim.owner).map_or(&[][..], |known| &known.unsettled);
        rounds.iter().map(|(round, node)| (late(claim, *round), *node)).collect()
    }

    /// These nodes were told of these names.
    pub(super) fn settled(&self, owner: Owner, told: &[(Owner, usize)]) {
        if let Some(known) = self.all().get_mut(&owner) {
            known.unsettled.retain(|(round, node)| !told.contains(&(name(owner, *round), *node)));
        }
    }

    /// The claim was released.
    pub(super) fn end(&self, owner: Owner) {
        self.all().remove(&owner);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Owner, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn named(claim: &Claim, round: u64) -> Claim {
    Claim { owner: name(claim.owner, round), ..claim.clone() }
}

/// The claim of a round, as a release has to name it that refuses what arrives after it.
fn late(claim: &Claim, round: u64) -> Claim {
    Claim { doubtful: true, ..named(claim, round) }
}

/// A client makes far fewer than 2^40 claims.
fn name(owner: Owner, round: u64) -> Owner {
    Owner::new(owner.client(), owner.number() | (round << 40))
}

/// More late requests than this of one claim are left to the end of their leases.
const UNSETTLED_MAX: usize = 256;

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
    fn a_name_changes_before_a_round_is_undone() {
        let (rounds, claim) = (Rounds::default(), claim());
        let first = rounds.claim(&claim).owner;
        let told = rounds.undone(&claim, 3);
        assert_ne!(rounds.claim(&claim).owner, first, "a release may arrive that was dropped");
        assert!(told.iter().all(|(late, _)| late.owner == first && late.doubtful), "{told:?}");
        assert_eq!(rounds.unsettled(&claim).len(), 3, "nobody has answered yet");
        rounds.settled(claim.owner, &[(first, 0), (first, 2)]);
        let left: Vec<usize> = rounds.unsettled(&claim).iter().map(|(_, node)| *node).collect();
        assert_eq!(left, [1]);
        rounds.end(claim.owner);
        assert!(rounds.unsettled(&claim).is_empty());
    }

    #[test]
    fn rounds_lost_to_the_same_holder_are_counted() {
        let (rounds, owner) = (Rounds::default(), claim().owner);
        let lost = |holder: Option<&str>| rounds.lost(owner, vec![1], holder.map(str::to_owned));
        assert_eq!([lost(Some("a")), lost(Some("a")), lost(Some("a"))], [0, 1, 2]);
        assert_eq!([lost(Some("b")), lost(Some("b"))], [0, 1]);
        assert_eq!([lost(None), lost(None)], [0, 0], "nobody is the same");
        assert_eq!(rounds.waits(owner), Some((vec![1], 0)));
    }
}
