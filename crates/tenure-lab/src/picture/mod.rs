//! What happened, for the eye: a page for the browser, lines for the terminal, one sentence for
//! both.
//!
//! Everything that a history says is text of strangers: each writer here escapes it for its medium.

mod checks;
mod escape;
mod headline;
#[cfg(test)]
mod hostile;
mod lanes;
mod matrix;
mod page;
mod scene;
mod story;
mod svg;
mod terminal;
#[cfg(test)]
mod tests;
mod time;

pub use self::headline::{duration, headline};
pub use self::matrix::{Cell, Head, Table, matrix};
pub use self::page::{embedded, figure, html};
pub use self::terminal::{table, terminal};

use crate::check::Report;
use crate::history::History;
use crate::verdict::Judgement;

/// The timeline as an SVG that stands alone, with its headline.
pub fn svg(history: &History, report: &Report, judgement: &Judgement) -> String {
    let scene = scene::Scene::of(history, report);
    let title = headline::capital(&headline(report));
    svg::draw(&scene, Some((&title, &subtitle(history, judgement))))
}

/// What was played on what, and the verdict.
fn subtitle(history: &History, judgement: &Judgement) -> String {
    let header = &history.header;
    let mut parts = vec![header.scenario.clone(), header.lock.clone()];
    parts.extend(Some(header.server.clone()).filter(|server| !server.is_empty()));
    let outcome = judgement.outcome.text();
    parts.push(format!("{} {} ({outcome})", judgement.measured.symbol(), judgement.measured));
    parts.join("  ·  ")
}
