//! Which clients held at the same time. An overlap is *certain* when both were inside their own
//! deadlines, which breaks the lock's guarantee. It is only *believed* when one had passed its
//! deadline without noticing, which every user of a lease must expect.

use serde::Serialize;

use super::hold::{Hold, Holds};

/// Both kinds of overlap.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Overlaps {
    /// Overlaps inside both deadlines.
    pub certain: Overlap,
    /// Overlaps of clients that act as the holder, inside their deadlines or not.
    pub believed: Overlap,
}

/// Times at which more than one client held the same key.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Overlap {
    /// Number of spans of time.
    pub count: u64,
    /// Sum of their lengths.
    pub total: u64,
    /// Length of the longest one.
    pub longest: u64,
    /// The most holders at one moment; 1 without an overlap, 0 without a holder.
    pub holders: usize,
    /// The first spans.
    pub first: Vec<OverlapSpan>,
}

/// One span of time with more than one holder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverlapSpan {
    /// Key of the lock.
    pub key: String,
    /// When it began.
    pub from: u64,
    /// When it ended.
    pub to: u64,
    /// The attempts that held at its beginning, oldest first.
    pub holds: Vec<u64>,
}

/// The most spans that are listed.
const MAX_LISTED: usize = 1000;

/// Finds the overlaps of each key. Nested acquires of one re-entrant client are one attempt.
pub fn check(holds: &Holds<'_>) -> Overlaps {
    let mut overlaps = Overlaps::default();
    // Just after the last event, so that a second grant counts even if it is the last event.
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
    /// Goes over all begins and ends in the order of time. At the same moment an end comes before a
    /// begin: a handoff without a gap is no overlap.
    fn sweep(&mut self, key: &str, spans: &[(u64, u64, &Hold<'_>)]) {
        let mut edges = Vec::with_capacity(spans.len() * 2);
        for &(from, to, hold) in spans.iter().filter(|(from, to, _)| from < to) {
            edges.push((from, true, hold.id));
            edges.push((to, false, hold.id));
        }
        edges.sort_unstable();
        let mut holding: Vec<u64> = Vec::new();
        let mut since = None;
        for (at, begins, id) in edges {
            if begins {
                holding.push(id);
            } else if let Some(position) = holding.iter().position(|&other| other == id) {
                holding.remove(position);
            }
            self.holders = self.holders.max(holding.len());
            match since {
                None if holding.len() > 1 => since = Some((at, holding.clone())),
                Some(_) if holding.len() > 1 => {}
                _ => self.end(key, since.take(), at),
            }
        }
    }

    fn end(&mut self, key: &str, since: Option<(u64, Vec<u64>)>, to: u64) {
        let Some((from, holds)) = since else { return };
        self.count += 1;
        self.total = self.total.saturating_add(to - from);
        self.longest = self.longest.max(to - from);
        if self.first.len() < MAX_LISTED {
            self.first.push(OverlapSpan { key: key.to_owned(), from, to, holds });
        }
    }
}
