//! The run in words: a caption, and the most important moments.

use super::headline::{duration, sentence};
use super::lanes::short_token;
use crate::check::Report;
use crate::check::hold::{Hold, Holds};
use crate::check::liveness::{Cause, Recovery};
use crate::history::{EventKind, History, Register};
use crate::verdict::Verdict;

/// The most moments that are listed; with more, the reader can as well read the history.
const MAX_MOMENTS: usize = 14;
/// How many attempts before and after a grant are searched for another holder.
const NEARBY: usize = 64;

/// What the run shows, for a reader who does not know the lab.
pub(super) fn caption(report: &Report, verdict: Verdict) -> String {
    match verdict {
        Verdict::Overlap | Verdict::Broken => harm(report, verdict),
        Verdict::Stuck | Verdict::Longer if never_held(report) => format!(
            "No two clients held at once. But no client got the lock for {}.",
            longest(report)
        ),
        Verdict::Stuck => format!(
            "No two clients held at once. But no client could go on for {}: the server kept \
             the lock until the lease of a holder that was gone had ended.",
            longest(report)
        ),
        Verdict::Longer => format!(
            "No two clients held at once. But no client could go on for {}, which is longer \
             than the lease explains.",
            longest(report)
        ),
        Verdict::Forever => format!(
            "No two clients held at once. But the lock did not come free within {}, and \
             nothing says that it ever will: an operator has to remove it.",
            longest(report)
        ),
        Verdict::Costly => {
            "No two clients held at once, and the lock stayed available. But it cost \
             more than the limit."
                .to_owned()
        }
        Verdict::Holds => {
            let wrote = report.resource.plain.accepted > 0;
            let kept = if wrote { ", and no update was lost even without a fence" } else { "" };
            format!("No two clients held at once{kept}; the next client got the lock at once.")
        }
        Verdict::Inapplicable => "This cannot happen to this lock.".to_owned(),
    }
}

/// Whether the worst gap is before the first grant.
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
            "For {} more than one client held the lock, each inside its own deadline: the \
             guarantee was broken.",
            duration(certain.total)
        )
    } else {
        format!(
            "For {} a client acted as holder after its lease had ended, beside the next one, which \
             every user of a lease has to expect.",
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
        text += " Their tokens do not show which came later, so no fence can help.";
    }
    text
}

/// An important moment.
pub(super) struct Moment {
    pub(super) at: u64,
    pub(super) text: String,
    /// Its importance; 0 is the highest.
    rank: u8,
    /// Whether it did harm.
    pub(super) harm: bool,
}

/// The most important moments, in the order of time.
pub(super) fn moments(history: &History) -> Vec<Moment> {
    let holds = Holds::of(history);
    let mut moments = Vec::new();
    let mut add = |at, rank, harm, text| moments.push(Moment { at, text, rank, harm });
    for hold in &holds.all {
        of_hold(hold, &holds, &mut add);
    }
    for event in &history.events {
        let lane = &event.lane;
        match &event.kind {
            EventKind::Fault { text, .. } => add(event.at, 0, false, sentence(text)),
            EventKind::Healed { text, .. } => add(event.at, 1, false, sentence(text)),
            EventKind::Wrote { register: Register::Plain, stale: true, .. } => {
                let text = format!("{lane} overwrites an update that it has not seen: lost.");
                add(event.at, 0, true, text);
            }
            EventKind::Wrote { register: Register::ReadWrite, stale: true, .. } => {
                add(event.at, 0, true, "Not even the fence on reading and writing helps.".into());
            }
            EventKind::Wrote { register: Register::ReadWrite, refused: true, .. } => {
                add(event.at, 0, false, format!("The fence refuses {lane}'s write."));
            }
            EventKind::Note { text } => add(event.at, 2, false, sentence(text)),
            _ => {}
        }
    }
    moments.sort_by_key(|moment| moment.rank);
    moments.truncate(MAX_MOMENTS);
    moments.sort_by_key(|moment| moment.at);
    moments
}

fn of_hold(hold: &Hold<'_>, holds: &Holds<'_>, add: &mut impl FnMut(u64, u8, bool, String)) {
    let lane = hold.lane;
    if let Some(at) = hold.granted {
        let token =
            hold.token.map(|token| format!(", token {}", short_token(token))).unwrap_or_default();
        let other = |other: &&Hold<'_>| {
            let inside = other.granted.is_some_and(|begin| begin < at) && other.belief_end() > at;
            inside && other.key == hold.key && other.id != hold.id
        };
        // Long histories have many grants: the other holder is among the nearby ones.
        let position = holds.all.partition_point(|other| other.requested < hold.requested);
        let near =
            &holds.all[position.saturating_sub(NEARBY)..(position + NEARBY).min(holds.all.len())];
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
    let belief = hold.belief_end();
    if let Some(end) =
        hold.certain_end().filter(|&end| belief != u64::MAX && end < belief.min(holds.end))
    {
        add(end, 1, false, format!("{lane}'s lease is over, and {lane} does not know."));
    }
    if let Some(at) = hold.lost {
        add(at, 1, false, format!("{lane} learns that its lock is lost."));
    }
    if let Some(at) = hold.ended {
        add(at, 1, false, format!("{lane}'s process ends while it holds or waits."));
    }
    if let Some(at) = hold.unanswered {
        add(at, 1, false, format!("{lane} gets no response: it may hold, or may not."));
    }
    if let Some(at) = hold.refused {
        add(at, 4, false, format!("{lane} is refused."));
    }
}
