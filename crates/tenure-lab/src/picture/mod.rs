//! Pictures of a run: a page for the browser, lines for the terminal, and a headline for both.
//!
//! All text in a history is untrusted: each writer here escapes it for its medium.
//!
//! - `timeline`: what there is to draw, in any medium; `axis`: its axis of time.
//! - `svg`, `lanes`: the timeline as SVG; `page`: the HTML page around it.
//! - `terminal`: the timeline for a terminal.
//! - `headline`, `narrative`, `checks`: what happened, in figures, in words, and by checker.
//! - `matrix`: the table of verdicts as a page.
//! - `escape`: escapes text for each medium.

mod axis;
mod checks;
mod escape;
mod headline;
#[cfg(test)]
mod hostile_tests;
mod lanes;
mod matrix;
mod narrative;
mod page;
mod svg;
mod terminal;
#[cfg(test)]
mod tests;
mod timeline;

pub use self::headline::{duration, headline};
pub use self::matrix::{Heading, Table, TableCell, matrix};
pub use self::page::{embedded, figure, html};
pub use self::terminal::{table, terminal};

use crate::check::Report;
use crate::history::History;
use crate::verdict::Judgement;

/// The timeline as an SVG that stands alone, with its headline.
pub fn svg(history: &History, report: &Report, judgement: &Judgement) -> String {
    let timeline = timeline::Timeline::of(history, report);
    let title = headline::capital(&headline(report));
    svg::draw(&timeline, Some((&title, &subtitle(history, judgement))))
}

/// Scenario, lock, server and verdict.
fn subtitle(history: &History, judgement: &Judgement) -> String {
    let header = &history.header;
    let mut parts = vec![header.scenario.clone(), header.lock.clone()];
    parts.extend(Some(header.server.clone()).filter(|server| !server.is_empty()));
    let outcome = judgement.outcome.text();
    parts.push(format!("{} ({outcome})", judgement.measured));
    parts.join("  ·  ")
}
