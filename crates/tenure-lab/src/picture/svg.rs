//! The timeline as SVG: lanes from top to bottom, time from left to right. Every colour is a
//! variable of the style sheet, so that one drawing serves light and dark mode; every meaning has a
//! shape as well.

use std::cmp::Reverse;
use std::fmt::{Display, Write};

use super::axis::TimeAxis;
use super::escape::{short, xml};
use super::headline::duration;
use super::lanes;
use super::timeline::{FaultSpan, OverlapBand, Timeline};

/// The style sheet of pictures, alone or inside a page.
pub(super) const STYLE: &str = include_str!("style.css");

pub(super) const WIDTH: f64 = 1120.0;
pub(super) const LEFT: f64 = 172.0;
const RIGHT: f64 = WIDTH - 26.0;
/// Position of the last moment; right of it is room for its label.
pub(super) const END: f64 = RIGHT - 28.0;

/// The most rows of faults; more would push the lanes off the screen.
const FAULT_ROWS: usize = 6;

/// A drawing in progress: the SVG so far, the axis, and the current vertical position.
pub(super) struct SvgCanvas<'a> {
    pub(super) out: String,
    axis: &'a TimeAxis,
    pub(super) y: f64,
}

impl SvgCanvas<'_> {
    /// Horizontal position of a moment.
    pub(super) fn x(&self, at: u64) -> f64 {
        LEFT + 6.0 + self.axis.position(at) * (END - LEFT - 6.0)
    }

    /// Adds an element. Writing to a string cannot fail.
    pub(super) fn add(&mut self, element: impl Display) {
        let _ignored = writeln!(self.out, "{element}");
    }

    pub(super) fn rect(&mut self, class: &str, x: f64, y: f64, w: f64, h: f64, round: f64) {
        let (x, y, w, h) = (n(x), n(y), n(w), n(h));
        self.add(format_args!(
            r#"<rect class="{class}" x="{x}" y="{y}" width="{w}" height="{h}" rx="{round}"/>"#
        ));
    }

    pub(super) fn line(&mut self, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
        let (x1, y1, x2, y2) = (n(x1), n(y1), n(x2), n(y2));
        self.add(format_args!(r#"<path class="{class}" d="M{x1} {y1}L{x2} {y2}"/>"#));
    }

    /// Adds text, escaped.
    pub(super) fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let (x, y, text) = (n(x), n(y), xml(text));
        self.add(format_args!(r#"<text class="{class}" x="{x}" y="{y}">{text}</text>"#));
    }
}

/// A coordinate: a tenth of a pixel is enough.
pub(super) fn n(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// Estimated width of a text.
pub(super) fn width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.62
}

/// Draws a timeline; with a title and a subtitle on a background of its own, to stand alone.
pub(super) fn draw(timeline: &Timeline<'_>, title: Option<(&str, &str)>) -> String {
    let y = if title.is_some() { 84.0 } else { 4.0 };
    let mut canvas = SvgCanvas { out: String::new(), axis: &timeline.axis, y };
    let axis = canvas.y + 14.0;
    canvas.y += 26.0;
    faults(&mut canvas, timeline);
    let labels = canvas.y;
    canvas.y += if timeline.bands.is_empty() { 4.0 } else { 24.0 };
    let top = canvas.y;
    lanes::draw(&mut canvas, timeline);
    let bottom = canvas.y;
    let lanes = std::mem::take(&mut canvas.out);
    grid(&mut canvas, timeline, axis, (top, bottom));
    for fault in timeline.faults.iter().filter(|fault| fault.to.is_none()).take(24) {
        let x = canvas.x(fault.from);
        canvas.line("faultline", x, top - 4.0, x, bottom);
    }
    bands(&mut canvas, &timeline.bands, labels, top, bottom);
    canvas.add(lanes);
    frame(&canvas.out, bottom + 8.0, title)
}

fn frame(inner: &str, height: f64, title: Option<(&str, &str)>) -> String {
    let mut hatches = String::new();
    for colour in 0..6 {
        let _ignored = write!(
            hatches,
            "<pattern id='h{colour}' width='6' height='6' patternUnits='userSpaceOnUse' \
             patternTransform='rotate(45)'><path class='s{colour}' d='M1.5 0V6' \
             stroke-width='2.2' opacity='.75'/></pattern>"
        );
    }
    let _ignored = write!(
        hatches,
        "<pattern id='hf' width='7' height='7' patternUnits='userSpaceOnUse' \
         patternTransform='rotate(-45)'><path d='M1 0V7' stroke='var(--fault)' \
         stroke-width='1.3' opacity='.5'/></pattern>"
    );
    let height = n(height);
    let mut head = format!(
        "<svg class='t' xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' \
         role='img'"
    );
    match title {
        None => head.push('>'),
        Some((title, sub)) => {
            let (title, sub) = (xml(title), xml(sub));
            let size = if width(&title, 25.0) > WIDTH { "19" } else { "25" };
            let _ignored = write!(
                head,
                " aria-label='{title}'><style>{STYLE}</style>\
                 <rect class='bg' width='{WIDTH}' height='{height}' rx='10'/>\
                 <text class='h1' style='font-size:{size}px' x='24' y='40'>{title}</text>\
                 <text class='h2' x='24' y='64'>{sub}</text>"
            );
        }
    }
    format!("{head}<defs>{hatches}</defs>\n{inner}</svg>\n")
}

/// Vertical lines for the time, with labels on top, and a sign where the axis is folded.
fn grid(canvas: &mut SvgCanvas<'_>, timeline: &Timeline<'_>, axis: f64, (top, bottom): (f64, f64)) {
    let time = &timeline.axis;
    let step = step(time.shown());
    let first = time.from().div_ceil(step);
    // With an end: an open range would overflow after the greatest number.
    for at in (first..=time.to() / step).map(|number| number * step) {
        if time.folds.iter().any(|&(from, to)| from < at && at < to) {
            continue;
        }
        let x = canvas.x(at);
        canvas.line("grid", x, axis + 5.0, x, bottom);
        let near =
            |&(from, to): &(u64, u64)| ((canvas.x(from) + canvas.x(to)) / 2.0 - x).abs() < 72.0;
        if !time.folds.iter().any(near) {
            canvas.text("tick", x, axis, &tick(at, step));
        }
    }
    for &(from, to) in &time.folds {
        let (x, end) = (canvas.x(from), canvas.x(to));
        let middle = (x + end) / 2.0;
        canvas.text("tick", middle, axis, &format!("⋯ {} ⋯", duration(to - from)));
        for x in [middle - 4.0, middle + 4.0] {
            canvas.line("fold", x + 3.0, axis + 5.0, x - 3.0, axis + 13.0);
            canvas.line("fold", x, top, x, bottom);
        }
    }
}

/// A round step that gives five to nine labels.
fn step(span: u64) -> u64 {
    let rough = (span / 9).max(1);
    let power = 10u64.pow(rough.ilog10());
    power * [1, 2, 5].into_iter().find(|factor| factor * power >= rough).unwrap_or(10)
}

fn tick(at: u64, step: u64) -> String {
    match step {
        1_000_000_000.. => format!("{} s", at / 1_000_000_000),
        100_000_000.. => format!("{:.1} s", at as f64 / 1e9),
        1_000_000.. => format!("{} ms", at / 1_000_000),
        1000.. => format!("{} µs", at / 1000),
        _ => format!("{at} ns"),
    }
}

/// Draws the faults, in as few rows as their labels need.
fn faults(canvas: &mut SvgCanvas<'_>, timeline: &Timeline<'_>) {
    if timeline.faults.is_empty() {
        return;
    }
    let mut ends: Vec<f64> = Vec::new();
    let top = canvas.y;
    for fault in timeline.faults.iter().take(60) {
        let label = short(&label(fault), 64);
        let wide = width(&label, 12.5) + 14.0;
        let x = canvas.x(fault.from);
        let to = fault.to.map_or(x, |to| canvas.x(to));
        let inside = to - x > wide;
        // A label that does not fit right of its mark is drawn left of it.
        let before = !inside && to + wide + 12.0 > RIGHT;
        let from = if before { x - wide - 12.0 } else { x };
        let end = if inside || before { to + 8.0 } else { to + wide + 12.0 };
        let free = ends.iter().position(|&taken| taken < from);
        let row = free.unwrap_or(ends.len()).min(FAULT_ROWS);
        // Without room for a label, only the tooltip of the mark has it.
        let label = if row < FAULT_ROWS { label } else { String::new() };
        ends.resize(ends.len().max(row + 1), f64::MIN);
        ends[row] = if row < FAULT_ROWS { end } else { f64::MIN };
        let y = top + row as f64 * 27.0;
        one_fault(canvas, fault, &label, y, inside, before);
    }
    canvas.text("name fault", 24.0, top + 16.0, "fault");
    canvas.y = top + ends.len() as f64 * 27.0 + 4.0;
}

fn label(fault: &FaultSpan<'_>) -> String {
    fault.text.to_owned()
}

fn one_fault(
    canvas: &mut SvgCanvas<'_>,
    fault: &FaultSpan<'_>,
    label: &str,
    y: f64,
    inside: bool,
    before: bool,
) {
    let x = canvas.x(fault.from);
    let to = fault.to.map_or(x, |to| canvas.x(to));
    canvas.add(format_args!("<g><title>{}</title>", xml(&self::label(fault))));
    if fault.to.is_some() {
        canvas.rect("fault", x, y, (to - x).max(3.0), 22.0, 4.0);
    } else {
        let (x, y) = (n(x), n(y + 3.0));
        canvas.add(format_args!(
            r#"<path class="fault" transform="translate({x} {y})" d="M2 0L-6 10H-1L-3 17L6 6H1Z"/>"#
        ));
    }
    canvas.add("</g>");
    match (inside, before) {
        _ if label.is_empty() => {}
        (true, _) => canvas.text("infault", x + 8.0, y + 15.5, label),
        (_, true) => {
            let x = n(x - 10.0);
            let (y, label) = (n(y + 15.5), xml(label));
            canvas.add(format_args!(
                r#"<text class="faulttext" text-anchor="end" x="{x}" y="{y}">{label}</text>"#
            ));
        }
        _ => canvas.text("faulttext", to + 10.0, y + 15.5, label),
    }
}

/// The red bands, with their lengths above: the certain ones first, as long as there is room.
fn bands(canvas: &mut SvgCanvas<'_>, bands: &[OverlapBand], labels: f64, top: f64, bottom: f64) {
    let mut taken: Vec<(f64, f64)> = Vec::new();
    let mut order: Vec<&OverlapBand> = bands.iter().collect();
    order.sort_by_key(|band| (!band.certain, Reverse(band.to - band.from)));
    for band in order {
        let (x, to) = (canvas.x(band.from), canvas.x(band.to));
        let wide = (to - x).max(2.0);
        canvas.rect("band", x, top - 3.0, wide, bottom - top + 3.0, 0.0);
        let edge = if band.certain { "bandedge" } else { "bandedge late" };
        for x in [x, x + wide] {
            canvas.line(edge, x, top - 3.0, x, bottom);
        }
        let words = if band.certain { "two holders" } else { "two holders, one past its deadline" };
        let label = format!("{words} · {}", duration(band.to - band.from));
        let half = width(&label, 13.0) / 2.0 + 6.0;
        let middle = (x + wide / 2.0).clamp(LEFT + half, RIGHT - half);
        if taken.iter().all(|&(from, to)| middle + half < from || to < middle - half) {
            let (x, y) = (n(middle), n(labels + 15.0));
            canvas.add(format_args!(
                r#"<text class="bandtext" text-anchor="middle" x="{x}" y="{y}">{label}</text>"#
            ));
            taken.push((middle - half, middle + half));
        }
    }
}
