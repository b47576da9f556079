//! What a history says about its lock: one file per question, and the report that holds all
//! answers.
//!
//! No checker guesses: an overlap is only called *certain* when both clients were inside their own
//! deadlines, and an answer that never came proves nothing.

pub mod control;
pub mod fairness;
pub mod holds;
pub mod linear;
pub mod liveness;
pub mod overlap;
pub mod resource;
pub mod token;

#[cfg(test)]
mod property;
#[cfg(test)]
mod tests;

use serde::Serialize;

use self::holds::Holds;
use crate::history::{History, What};

/// Everything that the checkers found in one history. Times are nanoseconds of the run's clock.
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
    /// How often the lock was asked for.
    pub asked: u64,
    /// How often it was given.
    pub granted: u64,
    /// How often it was surely not given.
    pub refused: u64,
    /// How often nobody answered.
    pub unanswered: u64,
    /// How often a holder was told, or found out, that it no longer holds.
    pub lost: u64,
    /// How many faults were injected.
    pub faults: u64,
    /// Who held at the same time.
    pub overlap: overlap::Overlaps,
    /// Whether tokens grow with the grants.
    pub tokens: token::Tokens,
    /// What the three registers of the resource went through.
    pub resource: resource::Resource,
    /// How long the lock was wanted while nobody could use it.
    pub liveness: liveness::Liveness,
    /// Who had to wait how long, and who was passed by.
    pub fairness: fairness::Fairness,
    /// Whether some order of single steps explains the whole history.
    pub linear: linear::Linear,
    /// Whether the run was able to show a fault at all.
    pub control: control::Control,
    /// Figures that the run measured itself.
    pub measured: Vec<Figure>,
}

/// A figure that the run measured itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// The figure.
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
    let count = |is: fn(&What) -> bool| {
        history.events.iter().filter(|event| is(&event.what)).count() as u64
    };
    Report {
        span: holds.end,
        asked: count(|what| matches!(what, What::Asked { .. })),
        granted: count(|what| matches!(what, What::Granted { .. })),
        refused: count(|what| matches!(what, What::Refused { .. })),
        unanswered: count(|what| matches!(what, What::Unanswered { .. })),
        lost: count(|what| matches!(what, What::Lost { .. })),
        faults: count(|what| matches!(what, What::Fault { .. })),
        tokens: token::check(&holds),
        liveness: liveness::check(history, &holds),
        fairness: fairness::check(&holds),
        linear: linear::check(&holds),
        control: control::check(&overlap, &resource),
        overlap,
        resource,
        measured: figures(history),
    }
}

fn figures(history: &History) -> Vec<Figure> {
    let all = history.events.iter().filter_map(|event| match &event.what {
        What::Measured { name, value, unit } => Some((name, *value, unit)),
        _ => None,
    });
    let (limits, figures): (Vec<_>, Vec<_>) = all.partition(|(name, ..)| limited(name).is_some());
    let limit = |name: &str| {
        limits.iter().find(|(of, ..)| limited(of) == Some(name)).map(|(_, value, _)| *value)
    };
    let figure = |(name, value, unit): (&String, f64, &String)| Figure {
        name: name.clone(),
        value,
        unit: unit.clone(),
        limit: limit(name),
    };
    figures.into_iter().map(figure).collect()
}

fn limited(name: &str) -> Option<&str> {
    name.strip_prefix("limit: ")
}
