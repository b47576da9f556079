//! The run in plain words: one caption, and the moments that matter.

use super::headline::{duration, sentence};
use super::lanes::brief;
use crate::check::Report;
use crate::check::holds::{Hold, Holds};
use crate::check::liveness::{Cause, Recovery};
use crate::history::{History, Register, What};
use crate::verdict::Verdict;

/// What the run shows, for somebody who has never heard of it.
pub(super) fn caption(report: &Report, verdict: Verdict) -> String {
    match verdict {
        Verdict::Overlap | Verdict::Broken => harm(report, verdict),
        Verdict::Stuck | Verdict::Longer if never_held(report) => format!(
            "Never did two clients hold at once. But nobody who asked got the lock for {}.",
            longest(report)
        ),
        Verdict::Stuck => format!(
            "Never did two clients hold at once. But nobody could go on for {}: the server kept \
             the lock until the lease of a holder that was gone had ended.",
            longest(report)
        ),
        Verdict::Longer => format!(
            "Never did two clients hold at once. But nobody could go on for {}, which is longer \
             than the lease explains.",
            longest(report)
        ),
        Verdict::Forever => format!(
            "Never did two clients hold at once. But the lock did not come free within {}, and \
             nothing says that it ever will: somebody has to remove it by hand.",
            longest(report)
        ),
        Verdict::Costly => "Never did two clients hold at once, and the lock went on. But it cost \
             more than the limit."
            .to_owned(),
        Verdict::Holds => {
            let stale = report.resource.plain.accepted > 0;
            let kept = if stale { ", and no update was lost even without a fence" } else { "" };
            format!("Never did two clients hold at once{kept}; the lock went on at once.")
        }
        Verdict::Inapplicable => "This cannot happen to this lock.".to_owned(),
    }
}

/// Whether the worst gap is one before anybody held.
fn never_held(report: &Report) -> bool {
    let worst = report.liveness.gaps.iter().find(|gap| gap.recovery == report.liveness.worst);
    worst.is_some_and(|gap| gap.cause == Cause::Start)
}

fn longest(report: &Report) -> String {
    let gaps = report.liveness.gaps.iter().filter(|gap| gap.recovery != Recovery::Soon);
    duration(gaps.map(|gap| gap.to - gap.from).max().unwrap_or(report.liveness.longest))
}

fn harm(report: &Report, verdict: Verdict) -> String {
    let (certain, believed) = (&report.overlap.certain, &report.overlap.believed);
    let mut text = if certain.count > 0 {
        format!(
            "For {} more than one client held the lock, each inside its own deadline: the promise \
             was broken.",
            duration(certain.total)
        )
    } else {
        format!(
            "For {} a client acted as holder after its lease had ended, beside the next one: what \
             everybody who uses a lease has to expect.",
            duration(believed.total)
        )
    };
    let (plain, fenced) = (&report.resource.plain, &report.resource.read_write);
    if plain.accepted > 0 {
        text += &format!(
            " The register without a fence lost {} of {} updates.",
            plain.lost, plain.accepted
        );
    }
    if verdict == Verdict::Overlap && fenced.accepted > 0 {
        text += " The one that compares tokens on reading and writing refused the stale holder and \
                 lost none.";
    } else if report.tokens.missing > 0 {
        text += " This lock gives no token, so no fence can tell the two apart.";
    } else if !report.tokens.sound() {
        text += " Their tokens do not tell who came later, so no fence can help.";
    }
    text
}

/// A moment that matters.
pub(super) struct Moment {
    pub(super) at: u64,
    pub(super) text: String,
    /// How much it matters, from 0 for most.
    rank: u8,
    /// Whether it is harm.
    pub(super) harm: bool,
}

/// More would be a log.
const MOMENTS: usize = 14;

/// The moments that matter most, in the order of time.
pub(super) fn moments(history: &History) -> Vec<Moment> {
    let holds = Holds::of(history);
    let mut moments = Vec::new();
    let mut add = |at, rank, harm, text| moments.push(Moment { at, text, rank, harm });
    for hold in &holds.all {
        of_hold(hold, &holds, &mut add);
    }
    for event in &history.events {
        let lane = &event.lane;
        match &event.what {
            What::Fault { text, .. } => add(event.at, 0, false, sentence(text)),
            What::Healed { text, .. } => add(event.at, 1, false, sentence(text)),
            What::Wrote { register: Register::Plain, stale: true, .. } => {
                let text = format!("{lane} overwrites an update that it has not seen: lost.");
                add(event.at, 0, true, text);
            }
            What::Wrote { register: Register::ReadWrite, stale: true, .. } => {
                add(event.at, 0, true, "Not even the fence on reading and writing helps.".into());
            }
            What::Wrote { register: Register::ReadWrite, refused: true, .. } => {
                add(event.at, 0, false, format!("The fence refuses {lane}'s write."));
            }
            What::Note { text } => add(event.at, 2, false, sentence(text)),
            _ => {}
        }
    }
    moments.sort_by_key(|moment| moment.rank);
    moments.truncate(MOMENTS);
    moments.sort_by_key(|moment| moment.at);
    moments
}

fn of_hold(hold: &Hold<'_>, holds: &Holds<'_>, add: &mut impl FnMut(u64, u8, bool, String)) {
    let lane = hold.lane;
    if let Some(at) = hold.granted {
        let token = hold.token.map(|token| format!(", token {}", brief(token))).unwrap_or_default();
        let other = |other: &&Hold<'_>| {
            let inside = other.granted.is_some_and(|begin| begin < at) && other.belief_end() > at;
            inside && other.key == hold.key && other.id != hold.id
        };
        // Long histories have many grants: looking a while back is enough to find the other one.
        let position = holds.all.partition_point(|other| other.asked < hold.asked);
        let near = &holds.all[position.saturating_sub(64)..(position + 64).min(holds.all.len())];
        match near.iter().find(other) {
            Some(other) => {
                let other = other.lane;
                let text =
                    format!("{lane} holds too{token}; {other} still believes that it holds.");
                add(at, 0, true, text);
            }
            None => add(at, 2, false, format!("{lane} holds the lock{token}.")),
        }
    }
    let (late, belief) = (hold.certain_end(), hold.belief_end());
    if let Some(end) = late.filter(|&end| belief != u64::MAX && end < belief.min(holds.end)) {
        add(end, 1, false, format!("{lane}'s lease is over, and {lane} does not know."));
    }
    if let Some(at) = hold.lost {
        add(at, 1, false, format!("{lane} learns that its lock is lost."));
    }
    if let Some(at) = hold.ended {
        add(at, 1, false, format!("{lane}'s process ends in the middle of it."));
    }
    if let Some(at) = hold.unanswered {
        add(at, 1, false, format!("{lane} gets no answer: it may hold, or may not."));
    }
    if let Some(at) = hold.refused {
        add(at, 4, false, format!("{lane} is refused."));
    }
}
