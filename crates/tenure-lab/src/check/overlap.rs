//! Who held at the same time, apart for two reasons: *certain*, when both were inside their own
//! deadlines, which breaks the lock's promise; *late*, when one had passed its deadline and did not
//! know, which everybody who uses a lease must expect.

use serde::Serialize;

use super::holds::{Hold, Holds};

/// Both kinds of overlap.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Overlaps {
    /// Inside both deadlines.
    pub certain: Overlap,
    /// Where at least one was past its deadline; also the certain ones.
    pub believed: Overlap,
}

/// Times at which more than one client held the same key.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Overlap {
    /// How many stretches of time.
    pub count: u64,
    /// Their lengths together.
    pub total: u64,
    /// The longest one.
    pub longest: u64,
    /// The most holders at one moment; 1 without overlap, 0 without any holder.
    pub holders: usize,
    /// The first stretches.
    pub first: Vec<Stretch>,
}

/// One stretch of time with more than one holder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stretch {
    /// Of this key.
    pub key: String,
    /// When it began.
    pub from: u64,
    /// When it ended.
    pub to: u64,
    /// The attempts that held at its beginning, oldest first.
    pub holds: Vec<u64>,
}

/// So many stretches are told one by one.
const TOLD: usize = 1000;

/// Looks for overlaps, key by key. Nested entries of one re-entrant client are one attempt.
pub fn check(holds: &Holds<'_>) -> Overlaps {
    let mut overlaps = Overlaps::default();
    // Just behind the last event, so that a second grant counts even if nothing came after it.
    let end = holds.end.saturating_add(1);
    for (key, holds_of_key) in holds.by_key() {
        let (mut certain, mut believed) = (Vec::new(), Vec::new());
        for hold in holds_of_key {
            certain.extend(hold.certain().map(|(from, to)| (from, to.min(end), hold)));
            let end = hold.belief_end().min(end);
            believed.extend(hold.granted.map(|from| (from, end, hold)));
        }
        overlaps.certain.sweep(key, &certain);
        overlaps.believed.sweep(key, &believed);
    }
    overlaps
}

impl Overlap {
    /// Walks over all begins and ends in the order of time. An end comes before a begin at the same
    /// moment: handing over without a gap is no overlap.
    fn sweep(&mut self, key: &str, stretches: &[(u64, u64, &Hold<'_>)]) {
        let mut turns = Vec::with_capacity(stretches.len() * 2);
        for &(from, to, hold) in stretches.iter().filter(|(from, to, _)| from < to) {
            turns.push((from, true, hold.id));
            turns.push((to, false, hold.id));
        }
        turns.sort_unstable();
        let mut inside: Vec<u64> = Vec::new();
        let mut since = None;
        for (at, enters, id) in turns {
            if enters {
                inside.push(id);
            } else if let Some(position) = inside.iter().position(|&other| other == id) {
                inside.remove(position);
            }
            self.holders = self.holders.max(inside.len());
            match since {
                None if inside.len() > 1 => since = Some((at, inside.clone())),
                Some(_) if inside.len() > 1 => {}
                _ => self.end(key, since.take(), at),
            }
        }
    }

    fn end(&mut self, key: &str, since: Option<(u64, Vec<u64>)>, to: u64) {
        let Some((from, holds)) = since else { return };
        self.count += 1;
        self.total = self.total.saturating_add(to - from);
        self.longest = self.longest.max(to - from);
        if self.first.len() < TOLD {
            self.first.push(Stretch { key: key.to_owned(), from, to, holds });
        }
    }
}
