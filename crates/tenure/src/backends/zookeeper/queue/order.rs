//! The rule of modes, by the names of the nodes of a key.
//!
//! Every claim, held or waiting, is one child of the key, and a child is created behind all others.
//! So the rule needs no other state: a claim is granted if it fits beside all claims before it, and
//! each of those fits too. Claims before it only leave, so that a granted claim stays granted.
//!
//! A list may be older than the leader's, but not older than the claim's own node, which it
//! contains: so it has every claim before it that exists, and perhaps some that have left. What
//! fits by such a list fits.
//!
//! Only one thing is not in the names: that an exclusive holder was made shared. It is in the data
//! of its node, and only the first child can have it, because an exclusive claim holds only when it
//! is the first.

use super::super::layout::{self, modes};
use crate::backend::Mode;

/// The children of a key in their order, with their modes.
pub(crate) struct Queue {
    names: Vec<String>,
    modes: Vec<Mode>,
}

/// What is in the way of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InTheWay {
    Nothing,
    /// This child, and nothing else if `only`.
    Child {
        rank: usize,
        only: bool,
    },
    /// The holders, which are all claims before it: they weigh too much beside it.
    Holders,
}

impl Queue {
    pub(crate) fn of(mut children: Vec<String>) -> Queue {
        layout::sort(&mut children);
        let modes = children.iter().map(|name| modes::mode_of(name)).collect();
        Queue { names: children, modes }
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether the key is in use as a lock, and not as a semaphore.
    pub(crate) fn is_lock(&self) -> bool {
        self.modes.first().is_none_or(|first| first.is_lock())
    }

    pub(crate) fn rank(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|other| other == name)
    }

    /// How many claims hold; `first` is the mode of the first child by its data.
    pub(crate) fn holders(&self, first: Option<Mode>) -> usize {
        let first = self.modes.first().map(|named| first.unwrap_or(*named));
        fitting(first.into_iter().chain(self.modes.iter().skip(1).copied()))
    }

    /// The mode by which the key is in use, if that is of the other kind: a key is a lock or a
    /// semaphore. The claims before it decide, so that of two the earlier one stays.
    pub(crate) fn other_kind(&self, rank: usize, mode: Mode) -> Option<Mode> {
        let first = *self.modes[..rank].first()?;
        (first.is_lock() != mode.is_lock()).then_some(first)
    }

    /// What is in the way of the claim with this rank. Of permits, `held` is the name of a node
    /// that is known to hold, and with it all before it.
    pub(crate) fn in_the_way(&self, rank: usize, mode: Mode, held: Option<&str>) -> InTheWay {
        let before = &self.modes[..rank];
        match mode {
            Mode::Exclusive if rank == 0 => InTheWay::Nothing,
            Mode::Exclusive => InTheWay::Child { rank: rank - 1, only: rank == 1 },
            Mode::Shared => {
                let blocks = |rank: &usize| before[*rank] != Mode::Shared;
                match (0..rank).rfind(blocks) {
                    None => InTheWay::Nothing,
                    Some(last) => {
                        InTheWay::Child { rank: last, only: (0..rank).find(blocks) == Some(last) }
                    }
                }
            }
            Mode::Permits { .. } => {
                let last = rank.checked_sub(1).map(|last| self.names[last].as_str());
                let all_hold = fitting(before.iter().copied()) == rank || last == held;
                let used: u64 = before.iter().map(|mode| u64::from(mode.weight())).sum();
                if !all_hold {
                    InTheWay::Child { rank: rank - 1, only: false }
                } else if used + u64::from(mode.weight()) <= u64::from(mode.limit()) {
                    InTheWay::Nothing
                } else {
                    InTheWay::Holders
                }
            }
        }
    }
}

/// How many claims, from the first on, fit together.
pub(crate) fn fitting(modes: impl Iterator<Item = Mode>) -> usize {
    let mut used = 0;
    let mut is_lock = None;
    let fits = |mode: &Mode| {
        used += u64::from(mode.weight());
        let same_kind = *is_lock.get_or_insert(mode.is_lock()) == mode.is_lock();
        same_kind && used <= u64::from(mode.limit())
    };
    modes.take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: Mode = Mode::Exclusive;
    const S: Mode = Mode::Shared;

    fn queue(modes: &[Mode]) -> Queue {
        let name = |(number, mode): (usize, &Mode)| {
            let marker = modes::marker(*mode);
            format!("_c_0f0e0d0c-0b0a-4908-8706-050403020100-{marker}{number:010}")
        };
        Queue::of(modes.iter().enumerate().rev().map(name).collect())
    }

    fn child(rank: usize, only: bool) -> InTheWay {
        InTheWay::Child { rank, only }
    }

    fn permits(take: u32, of: u32) -> Mode {
        Mode::permits(take, of).unwrap()
    }

    #[test]
    fn a_reader_waits_for_the_last_writer_before_it() {
        let queue = queue(&[S, S, X, S, X, S]);
        assert_eq!(queue.holders(None), 2);
        assert_eq!(queue.in_the_way(1, S, None), InTheWay::Nothing);
        assert_eq!(queue.in_the_way(3, S, None), child(2, true));
        assert_eq!(queue.in_the_way(5, S, None), child(4, false));
    }

    #[test]
    fn a_writer_waits_for_all() {
        let queue = queue(&[S, X, X]);
        assert_eq!(queue.in_the_way(1, X, None), child(0, true));
        assert_eq!(queue.in_the_way(2, X, None), child(1, false));
        assert_eq!(queue.in_the_way(0, X, None), InTheWay::Nothing);
        assert_eq!(self::queue(&[]).holders(Some(S)), 0);
    }

    #[test]
    fn a_downgraded_writer_holds_beside_the_readers_behind_it() {
        let queue = queue(&[X, S, S, X]);
        assert_eq!(queue.holders(None), 1);
        assert_eq!(queue.holders(Some(S)), 3);
        assert_eq!(queue.in_the_way(2, S, None), child(0, true));
    }

    #[test]
    fn permits_fit_up_to_their_limit_and_never_past_a_waiter() {
        let [one, two, three] = [permits(1, 3), permits(2, 3), permits(3, 3)];
        let queue = queue(&[one, one, two, one]);
        assert_eq!(queue.holders(None), 2);
        assert_eq!(queue.in_the_way(2, two, None), InTheWay::Holders);
        assert_eq!(queue.in_the_way(2, permits(2, 4), None), InTheWay::Nothing);
        // One permit is free, and it is not that of the last claim.
        assert_eq!(queue.in_the_way(3, one, None), child(2, false));
        assert_eq!(self::queue(&[three]).in_the_way(0, three, None), InTheWay::Nothing);
    }

    #[test]
    fn a_claim_with_a_higher_limit_does_not_pass_one_with_a_lower_limit() {
        let queue = queue(&[permits(2, 2), permits(1, 2), permits(1, 9)]);
        assert_eq!(queue.in_the_way(2, permits(1, 9), None), child(1, false));
        // Unless that holds by now, because it raised its own.
        let raised = queue.names()[1].clone();
        assert_eq!(queue.in_the_way(2, permits(1, 9), Some(&raised)), InTheWay::Nothing);
    }

    #[test]
    fn a_key_is_a_lock_or_a_semaphore() {
        let one = permits(1, 3);
        let queue = queue(&[S, one, S, X]);
        assert_eq!(queue.other_kind(1, one), Some(S));
        assert_eq!(queue.other_kind(2, S), None);
        assert_eq!(queue.other_kind(0, one), None);
        // Until the claim of the other kind has removed itself, it is in the way of all.
        assert_eq!(queue.in_the_way(2, S, None), child(1, true));
        assert_eq!(queue.holders(None), 1);
    }

    #[test]
    fn nodes_that_tenure_did_not_name_are_exclusive() {
        let names = ["_c_1-lock-0000000001", "lock-0000000002", "leases", "locks"];
        let queue = Queue::of(names.map(str::to_owned).to_vec());
        assert_eq!(queue.holders(None), 1);
        assert_eq!(queue.in_the_way(3, S, None), child(2, false));
    }
}
