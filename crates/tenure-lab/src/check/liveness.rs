//! How long the lock was wanted while nobody could make use of it.
//!
//! A gap begins when the last holder that works is gone: it gave back, was lost, ended, was hit by
//! a fault that lasts, or passed its deadline. It counts while a working client waits, and ends
//! with the next grant, or without one.

use std::collections::HashMap;

use serde::Serialize;

use super::holds::{Hold, Holds};
use crate::history::{Event, History, What};

/// How the lock lives.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Liveness {
    /// The lease that the header names, or else the longest one that was given.
    pub lease: Option<u64>,
    /// The longest gap.
    pub longest: u64,
    /// How it was at its worst.
    pub worst: Recovery,
    /// The gaps that were no ordinary hand-over, and the longest one of the ordinary ones.
    pub gaps: Vec<Gap>,
}

/// One gap.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gap {
    /// Of this key.
    pub key: String,
    /// Why nobody held.
    pub cause: Cause,
    /// The attempt that held before, or that may have held without an answer.
    pub after: Option<u64>,
    /// When the gap began.
    pub from: u64,
    /// When the next grant came, or the waiting ended without one.
    pub to: u64,
    /// Whether it ended with a grant.
    pub recovered: bool,
    /// How it compares with the lease.
    pub recovery: Recovery,
}

/// How the last holder went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Nobody had held before.
    Start,
    /// It gave back.
    Released,
    /// It was told that it no longer holds.
    Lost,
    /// Its process ended.
    Ended,
    /// It was stopped or cut off.
    Fault,
    /// It passed its own deadline.
    Deadline,
}

/// How long it took until somebody could go on, from good to bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// Soon: long before the lease of the last holder would have ended.
    #[default]
    Soon,
    /// With the end of the lease.
    Lease,
    /// Later than the lease explains.
    Longer,
    /// Never, and the server would not give it up by itself.
    Never,
}

/// Finds the gaps of every key.
pub fn check(history: &History, holds: &Holds<'_>) -> Liveness {
    let told = Some(history.header.lease).filter(|&lease| lease > 0);
    let lease = told.or(holds.lease);
    let faults = Faults::of(history, holds.end);
    let mut liveness = Liveness { lease, ..Liveness::default() };
    let trouble = first_trouble(history);
    for (key, holds_of_key) in holds.by_key() {
        for (mut gap, before) in gaps(key, &holds_of_key, &faults, holds.end) {
            gap.recovery = judge(&gap, before, lease, (history, trouble));
            liveness.take(gap);
        }
    }
    liveness
}

/// When something went wrong for the first time.
fn first_trouble(history: &History) -> Option<u64> {
    let trouble = |event: &&Event| {
        matches!(event.what, What::Fault { .. } | What::Ended { .. } | What::Unanswered { .. })
    };
    history.events.iter().find(trouble).map(|event| event.at)
}

impl Liveness {
    fn take(&mut self, gap: Gap) {
        self.worst = self.worst.max(gap.recovery);
        let length = gap.to - gap.from;
        let ordinary = gap.recovery == Recovery::Soon;
        if ordinary && length < self.longest {
            return;
        }
        self.longest = self.longest.max(length);
        // Keep the list short: of the ordinary ones only the longest.
        if ordinary {
            self.gaps.retain(|gap| gap.recovery != Recovery::Soon);
        }
        self.gaps.push(gap);
    }
}

/// When each client was stopped, cut off or dead: then it neither holds nor waits in earnest.
struct Faults<'a>(HashMap<&'a str, Vec<(u64, u64)>>);

impl<'a> Faults<'a> {
    fn of(history: &'a History, end: u64) -> Faults<'a> {
        let mut faults: HashMap<&str, Vec<(u64, u64)>> = HashMap::new();
        for event in &history.events {
            match &event.what {
                What::Fault { target, lasts: true, .. } => {
                    faults.entry(target).or_default().push((event.at, end));
                }
                What::Healed { target, .. } => {
                    let spans = faults.entry(target).or_default();
                    if let Some(open) = spans.iter_mut().rev().find(|span| span.1 == end) {
                        open.1 = event.at;
                    }
                }
                What::Ended { .. } => {
                    faults.entry(&event.lane).or_default().push((event.at, end));
                }
                _ => {}
            }
        }
        Faults(faults)
    }

    /// What is left of a stretch of a client without its faults.
    fn without(&self, lane: &str, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut left = vec![(from, to)];
        for &(begin, end) in self.0.get(lane).map(Vec::as_slice).unwrap_or_default() {
            let halves =
                left.iter().flat_map(|&(from, to)| [(from, to.min(begin)), (from.max(end), to)]);
            left = halves.filter(|(from, to)| from < to).collect();
        }
        left
    }

    /// Whether a fault of this client began then.
    fn began(&self, lane: &str, at: u64) -> bool {
        self.0.get(lane).is_some_and(|spans| spans.iter().any(|&(begin, _)| begin == at))
    }
}

/// One step of the walk over time, in the order in which steps of one moment are taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Wants,
    Holds,
    Leaves,
    StopsWanting,
}

/// Walks over all begins and ends of holding and wanting of one key.
fn gaps<'h, 'a>(
    key: &str,
    holds: &[&'h Hold<'a>],
    faults: &Faults<'_>,
    end: u64,
) -> Vec<(Gap, Option<&'h Hold<'a>>)> {
    let (mut wanting, mut holding) = (0usize, 0usize);
    let (mut since, mut before): (_, Option<(&Hold<'_>, u64)>) = (None, None);
    let mut found = Vec::new();
    for (at, step, number) in steps(holds, faults, end) {
        match step {
            Step::Wants => wanting += 1,
            Step::StopsWanting => wanting -= 1,
            Step::Holds => holding += 1,
            Step::Leaves => {
                holding -= 1;
                before = Some((holds[number], at));
            }
        }
        let gap = wanting > 0 && holding == 0;
        match since {
            None if gap => since = Some((at, before)),
            Some((from, before)) if !gap => {
                let recovered = step == Step::Holds || holds[number].granted == Some(at);
                let gap = gap_of(key, faults, before, from, at, recovered);
                found.push((gap, before.map(|(hold, _)| hold)));
                since = None;
            }
            _ => {}
        }
    }
    found
}

fn steps(holds: &[&Hold<'_>], faults: &Faults<'_>, end: u64) -> Vec<(u64, Step, usize)> {
    let mut steps = Vec::new();
    let mut asks_next: HashMap<&str, u64> = HashMap::new();
    for (number, hold) in holds.iter().enumerate().rev() {
        let mut answered = hold.answered().min(end);
        // A client that was refused and asks again waits in between as well.
        if hold.granted.is_none() {
            answered = asks_next.get(hold.lane).copied().unwrap_or(answered).max(answered);
        }
        asks_next.insert(hold.lane, hold.asked);
        for (from, to) in faults.without(hold.lane, hold.asked, answered) {
            steps.extend([(from, Step::Wants, number), (to, Step::StopsWanting, number)]);
        }
        for (from, to) in hold.certain() {
            for (from, to) in faults.without(hold.lane, from, to.min(end)) {
                steps.extend([(from, Step::Holds, number), (to, Step::Leaves, number)]);
            }
        }
    }
    steps.sort_unstable();
    steps
}

fn gap_of(
    key: &str,
    faults: &Faults<'_>,
    before: Option<(&Hold<'_>, u64)>,
    from: u64,
    to: u64,
    recovered: bool,
) -> Gap {
    let cause = match before {
        None => Cause::Start,
        Some((hold, at)) if hold.ended == Some(at) => Cause::Ended,
        Some((hold, at)) if faults.began(hold.lane, at) => Cause::Fault,
        Some((hold, at)) if hold.lost == Some(at) => Cause::Lost,
        Some((hold, at)) if hold.belief_end() == at => Cause::Released,
        Some(_) => Cause::Deadline,
    };
    let after = before.map(|(hold, _)| hold.id);
    Gap { key: key.to_owned(), cause, after, from, to, recovered, recovery: Recovery::Soon }
}

/// Half of what was left of the lease still counts as soon; what is later than the lease and a
/// half, or a second where leases are short, is longer than the lease explains.
fn judge(
    gap: &Gap,
    before: Option<&Hold<'_>>,
    lease: Option<u64>,
    (history, trouble): (&History, Option<u64>),
) -> Recovery {
    let length = gap.to - gap.from;
    // Nobody has held yet and nothing has gone wrong: that is a server that is slow to begin with.
    if gap.cause == Cause::Start && trouble.is_none_or(|at| at > gap.to) {
        return Recovery::Soon;
    }
    let orphaned = matches!(gap.cause, Cause::Ended | Cause::Fault);
    let left = before
        .filter(|_| orphaned)
        .and_then(Hold::deadline)
        .map(|deadline| deadline.saturating_sub(gap.from))
        .or(lease)
        .unwrap_or(2 * SECOND);
    if length < (left / 2).max(SECOND / 5) {
        return Recovery::Soon;
    }
    let bound = lease.map(|lease| lease.saturating_add((lease / 2).max(SECOND)));
    if bound.is_some_and(|bound| length <= bound) {
        return Recovery::Lease;
    }
    let forever = !gap.recovered && for_ever(gap, before, lease, history);
    if forever { Recovery::Never } else { Recovery::Longer }
}

const SECOND: u64 = 1_000_000_000;

/// Whether the server would keep the lock for somebody who is gone: its last word names no end, or
/// the end was pushed out again and again after the holder stopped working.
fn for_ever(gap: &Gap, before: Option<&Hold<'_>>, lease: Option<u64>, history: &History) -> bool {
    let seen = |event: &Event| match &event.what {
        What::Seen { holder, until } => Some((holder.is_some() || until.is_some(), *until)),
        _ => None,
    };
    let end = history.events.partition_point(|event| event.at <= gap.to);
    let Some((held, until)) = history.events[..end].iter().rev().find_map(seen) else {
        return false;
    };
    let begin = history.events.partition_point(|event| event.at < gap.from);
    let ends: Vec<u64> =
        history.events[begin..end].iter().filter_map(seen).filter_map(|(_, until)| until).collect();
    // A session of a client that lives ends with the session, sooner or later.
    let dead = before.is_none_or(|hold| hold.ended.is_some());
    // A renewal pushes the end by a good part of a lease, and never by more than two; less is how
    // exactly the lab can look, so that all pushes together count as well.
    let lease = lease.unwrap_or(SECOND);
    let moves: Vec<i128> = ends
        .windows(2)
        .map(|pair| i128::from(pair[1]) - i128::from(pair[0]))
        .filter(|by| *by <= 2 * i128::from(lease))
        .collect();
    let pushes = moves.iter().filter(|by| **by > i128::from(lease / 8)).count();
    let renewed = pushes >= 3 && moves.iter().sum::<i128>() >= i128::from(lease);
    (held && until.is_none() && dead) || renewed
}
