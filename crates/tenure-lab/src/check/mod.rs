//! The checkers: what a history says about its lock. One file per question, and a report with all
//! results.
//!
//! No checker guesses: an overlap is only called *certain* when both clients were inside their own
//! deadlines, and a response that never came proves nothing.
//!
//! - [`hold`]: the attempts, with the events of each.
//! - [`overlap`]: did two clients hold at the same time?
//! - [`token`]: do tokens grow with the grants?
//! - [`resource`]: did the registers lose updates?
//! - [`liveness`]: how long was the lock not usable?
//! - [`fairness`]: how long did clients wait, and who was passed by?
//! - [`linearizability`]: does some order of steps explain the history?
//! - [`control`]: was the run able to show a fault?

pub mod control;
pub mod fairness;
pub mod hold;
pub mod linearizability;
pub mod liveness;
pub mod overlap;
pub mod resource;
pub mod token;

#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;

use serde::Serialize;

use self::hold::Holds;
use crate::history::{EventKind, History};

/// Everything that the checkers found in one history. Times are in nanoseconds of the run's clock.
///
/// # Examples
///
/// ```
/// use tenure_lab::{check, history::History};
///
/// let lines = [
///     concat!(r#"{"scenario":"calm","about":"","lock":"l","server":"","seed":1,"#,
///         r#""expected":"holds","lanes":[]}"#),
///     r#"{"at":1,"lane":"A","event":"asked","hold":1,"key":"k"}"#,
///     r#"{"at":2,"lane":"A","event":"granted","hold":1,"token":7,"deadline":100}"#,
///     r#"{"at":3,"lane":"B","event":"asked","hold":2,"key":"k"}"#,
///     r#"{"at":4,"lane":"B","event":"granted","hold":2,"token":8,"deadline":100}"#,
/// ];
/// let report = check::check(&History::read(lines.join("\n").as_bytes())?);
/// assert_eq!(report.overlap.certain.count, 1, "both were inside their deadlines");
/// # anyhow::Ok(())
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How long the run took, from its start to its last event.
    pub span: u64,
    /// Number of attempts to acquire the lock.
    pub asked: u64,
    /// Number of grants.
    pub granted: u64,
    /// Number of attempts that were refused.
    pub refused: u64,
    /// Number of attempts without a response.
    pub unanswered: u64,
    /// Number of holders that learned that they had lost the lock.
    pub lost: u64,
    /// Number of injected faults.
    pub faults: u64,
    /// Which clients held at the same time.
    pub overlap: overlap::Overlaps,
    /// Whether tokens grow with the grants.
    pub tokens: token::Tokens,
    /// What happened to the three registers of the resource.
    pub resource: resource::Resource,
    /// How long clients waited while no client could use the lock.
    pub liveness: liveness::Liveness,
    /// How long clients waited, and who was passed by.
    pub fairness: fairness::Fairness,
    /// Whether some order of single steps explains the whole history.
    pub linear: linearizability::Linearizability,
    /// Whether the run was able to show a fault at all.
    pub control: control::Control,
    /// Figures that the scenario measured.
    pub measured: Vec<Figure>,
}

/// A figure that the scenario measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Name of the figure.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// The most that it may be: the value of the figure `limit: NAME`, if there is one.
    pub limit: Option<f64>,
}

impl Figure {
    /// Whether it is above its limit.
    pub fn exceeds(&self) -> bool {
        self.limit.is_some_and(|limit| self.value > limit)
    }
}

/// Checks a history with every checker.
///
/// A figure `limit: NAME` in the history bounds the figure NAME.
pub fn check(history: &History) -> Report {
    let holds = Holds::of(history);
    let overlap = overlap::check(&holds);
    let resource = resource::check(history);
    let count = |is: fn(&EventKind) -> bool| {
        history.events.iter().filter(|event| is(&event.kind)).count() as u64
    };
    Report {
        span: holds.end,
        asked: count(|kind| matches!(kind, EventKind::Asked { .. })),
        granted: count(|kind| matches!(kind, EventKind::Granted { .. })),
        refused: count(|kind| matches!(kind, EventKind::Refused { .. })),
        unanswered: count(|kind| matches!(kind, EventKind::Unanswered { .. })),
        lost: count(|kind| matches!(kind, EventKind::Lost { .. })),
        faults: count(|kind| matches!(kind, EventKind::Fault { .. })),
        tokens: token::check(&holds),
        liveness: liveness::check(history, &holds),
        fairness: fairness::check(&holds),
        linear: linearizability::check(&holds),
        control: control::check(&overlap, &resource),
        overlap,
        resource,
        measured: figures(history),
    }
}

fn figures(history: &History) -> Vec<Figure> {
    let all = history.events.iter().filter_map(|event| match &event.kind {
        EventKind::Measured { name, value, unit } => Some((name, *value, unit)),
        _ => None,
    });
    let (limits, figures): (Vec<_>, Vec<_>) =
        all.partition(|(name, ..)| limited_name(name).is_some());
    let limit = |name: &str| {
        limits.iter().find(|(of, ..)| limited_name(of) == Some(name)).map(|(_, value, _)| *value)
    };
    let figure = |(name, value, unit): (&String, f64, &String)| Figure {
        name: name.clone(),
        value,
        unit: unit.clone(),
        limit: limit(name),
    };
    figures.into_iter().map(figure).collect()
}

/// The name of the figure that this figure is the limit of.
fn limited_name(name: &str) -> Option<&str> {
    name.strip_prefix("limit: ")
}
