//! How long clients waited for the lock while no client could use it.
//!
//! A gap begins when no working holder is left: the last one released, lost the lock, ended, was
//! hit by a fault that lasts, or passed its deadline. It counts while a working client waits, and
//! ends with the next grant, or without one.

use std::collections::HashMap;

use serde::Serialize;

use super::hold::{Hold, Holds};
use crate::history::{Event, EventKind, History};

const SECOND: u64 = 1_000_000_000;

/// The gaps of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Liveness {
    /// The lease of the header, or else the longest one that was granted.
    pub lease: Option<u64>,
    /// Length of the longest gap.
    pub longest: u64,
    /// The worst recovery.
    pub worst: Recovery,
    /// The gaps that were not ordinary handoffs, and the longest of the ordinary ones.
    pub gaps: Vec<Gap>,
}

/// One gap.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gap {
    /// Key of the lock.
    pub key: String,
    /// How the last holder ended.
    pub cause: Cause,
    /// The attempt that held before.
    pub after: Option<u64>,
    /// When the gap began.
    pub from: u64,
    /// When the next grant came, or when the wait ended without one.
    pub to: u64,
    /// Whether it ended with a grant.
    pub recovered: bool,
    /// Its length, compared with the lease.
    pub recovery: Recovery,
}

/// How the last holder ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// There was no holder before.
    Start,
    /// It released.
    Released,
    /// It learned that it had lost the lock.
    Lost,
    /// Its process ended.
    Ended,
    /// It was stopped or cut off.
    Fault,
    /// It passed its own deadline.
    Deadline,
}

/// How long it took until the next client held, from good to bad.
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
    /// Never, and the server would not end the lease by itself.
    Never,
}

/// Finds the gaps of every key.
pub fn check(history: &History, holds: &Holds<'_>) -> Liveness {
    let configured = Some(history.header.lease).filter(|&lease| lease > 0);
    let lease = configured.or(holds.lease);
    let outages = Outages::of(history, holds.end);
    let mut liveness = Liveness { lease, ..Liveness::default() };
    let trouble = first_trouble(history);
    for (key, holds_of_key) in holds.by_key() {
        for (mut gap, before) in gaps(key, &holds_of_key, &outages, holds.end) {
            gap.recovery = judge(&gap, before, lease, (history, trouble));
            liveness.add(gap);
        }
    }
    liveness
}

/// Time of the first fault, end of a process, or missing response.
fn first_trouble(history: &History) -> Option<u64> {
    let trouble = |event: &&Event| {
        matches!(
            event.kind,
            EventKind::Fault { .. } | EventKind::Ended { .. } | EventKind::Unanswered { .. }
        )
    };
    history.events.iter().find(trouble).map(|event| event.at)
}

impl Liveness {
    fn add(&mut self, gap: Gap) {
        self.worst = self.worst.max(gap.recovery);
        let length = gap.to - gap.from;
        let ordinary = gap.recovery == Recovery::Soon;
        if ordinary && length < self.longest {
            return;
        }
        self.longest = self.longest.max(length);
        // Of the ordinary gaps only the longest is listed.
        if ordinary {
            self.gaps.retain(|gap| gap.recovery != Recovery::Soon);
        }
        self.gaps.push(gap);
    }
}

/// When each client was stopped, cut off or ended: then it neither holds nor waits.
struct Outages<'a>(HashMap<&'a str, Vec<(u64, u64)>>);

impl<'a> Outages<'a> {
    fn of(history: &'a History, end: u64) -> Outages<'a> {
        Outages(history.outages(end, true))
    }

    /// What is left of a span of a client without its outages.
    fn without(&self, lane: &str, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut left = vec![(from, to)];
        for &(begin, end) in self.0.get(lane).map(Vec::as_slice).unwrap_or_default() {
            let halves =
                left.iter().flat_map(|&(from, to)| [(from, to.min(begin)), (from.max(end), to)]);
            left = halves.filter(|(from, to)| from < to).collect();
        }
        left
    }

    /// Whether an outage of this client began then.
    fn began(&self, lane: &str, at: u64) -> bool {
        self.0.get(lane).is_some_and(|spans| spans.iter().any(|&(begin, _)| begin == at))
    }
}

/// A change of who holds or waits, in the order in which changes of the same moment count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Transition {
    StartsWaiting,
    StartsHolding,
    StopsHolding,
    StopsWaiting,
}

/// The gaps of one key, each with the attempt that held before.
fn gaps<'h, 'a>(
    key: &str,
    holds: &[&'h Hold<'a>],
    outages: &Outages<'_>,
    end: u64,
) -> Vec<(Gap, Option<&'h Hold<'a>>)> {
    let (mut waiting, mut holding) = (0usize, 0usize);
    let mut since = None;
    let mut before: Option<(&Hold<'_>, u64)> = None;
    let mut found = Vec::new();
    for (at, transition, number) in transitions(holds, outages, end) {
        match transition {
            Transition::StartsWaiting => waiting += 1,
            Transition::StopsWaiting => waiting -= 1,
            Transition::StartsHolding => holding += 1,
            Transition::StopsHolding => {
                holding -= 1;
                before = Some((holds[number], at));
            }
        }
        let gap = waiting > 0 && holding == 0;
        match since {
            None if gap => since = Some((at, before)),
            Some((from, before)) if !gap => {
                let recovered =
                    transition == Transition::StartsHolding || holds[number].granted == Some(at);
                let gap = gap_of(key, outages, before, from, at, recovered);
                found.push((gap, before.map(|(hold, _)| hold)));
                since = None;
            }
            _ => {}
        }
    }
    found
}

fn transitions(
    holds: &[&Hold<'_>],
    outages: &Outages<'_>,
    end: u64,
) -> Vec<(u64, Transition, usize)> {
    let mut transitions = Vec::new();
    let mut next_request: HashMap<&str, u64> = HashMap::new();
    for (number, hold) in holds.iter().enumerate().rev() {
        let mut decided = hold.decided().min(end);
        // A client that was refused and tries again waits in between as well.
        if hold.granted.is_none() {
            decided = next_request.get(hold.lane).copied().unwrap_or(decided).max(decided);
        }
        next_request.insert(hold.lane, hold.requested);
        for (from, to) in outages.without(hold.lane, hold.requested, decided) {
            transitions.extend([
                (from, Transition::StartsWaiting, number),
                (to, Transition::StopsWaiting, number),
            ]);
        }
        for (from, to) in hold.certain() {
            for (from, to) in outages.without(hold.lane, from, to.min(end)) {
                transitions.extend([
                    (from, Transition::StartsHolding, number),
                    (to, Transition::StopsHolding, number),
                ]);
            }
        }
    }
    transitions.sort_unstable();
    transitions
}

fn gap_of(
    key: &str,
    outages: &Outages<'_>,
    before: Option<(&Hold<'_>, u64)>,
    from: u64,
    to: u64,
    recovered: bool,
) -> Gap {
    let cause = match before {
        None => Cause::Start,
        Some((hold, at)) if hold.ended == Some(at) => Cause::Ended,
        Some((hold, at)) if outages.began(hold.lane, at) => Cause::Fault,
        Some((hold, at)) if hold.lost == Some(at) => Cause::Lost,
        Some((hold, at)) if hold.belief_end() == at => Cause::Released,
        Some(_) => Cause::Deadline,
    };
    let after = before.map(|(hold, _)| hold.id);
    Gap { key: key.to_owned(), cause, after, from, to, recovered, recovery: Recovery::Soon }
}

/// Compares a gap with the lease. Less than half of what was left of the lease counts as soon; more
/// than a lease and a half, or a lease and a second where leases are short, is longer than the
/// lease explains.
fn judge(
    gap: &Gap,
    before: Option<&Hold<'_>>,
    lease: Option<u64>,
    (history, trouble): (&History, Option<u64>),
) -> Recovery {
    let length = gap.to - gap.from;
    // Before the first grant and without a fault, the server is just slow to start.
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
    if !gap.recovered && is_forever(gap, before, lease, history) {
        Recovery::Never
    } else {
        Recovery::Longer
    }
}

/// Whether the server would keep the lock for a holder that is gone: it last showed no expiry, or
/// the expiry moved again and again after the holder had stopped working.
fn is_forever(gap: &Gap, before: Option<&Hold<'_>>, lease: Option<u64>, history: &History) -> bool {
    let seen = |event: &Event| match &event.kind {
        EventKind::Seen { holder, until } => Some((holder.is_some() || until.is_some(), *until)),
        _ => None,
    };
    let end = history.events.partition_point(|event| event.at <= gap.to);
    let Some((held, until)) = history.events[..end].iter().rev().find_map(seen) else {
        return false;
    };
    let begin = history.events.partition_point(|event| event.at < gap.from);
    let ends: Vec<u64> =
        history.events[begin..end].iter().filter_map(seen).filter_map(|(_, until)| until).collect();
    // A lock of a client that is alive ends with its session, sooner or later.
    let has_ended = before.is_none_or(|hold| hold.ended.is_some());
    // A renewal moves the expiry by a good part of a lease, and never by more than two leases.
    // Smaller moves are inaccuracies of the observation; so the sum of all moves counts as well.
    let lease = lease.unwrap_or(SECOND);
    let moves: Vec<i128> = ends
        .windows(2)
        .map(|pair| i128::from(pair[1]) - i128::from(pair[0]))
        .filter(|by| *by <= 2 * i128::from(lease))
        .collect();
    let renewals = moves.iter().filter(|by| **by > i128::from(lease / 8)).count();
    let is_renewed = renewals >= 3 && moves.iter().sum::<i128>() >= i128::from(lease);
    (held && until.is_none() && has_ended) || is_renewed
}
