//! The timeline for a terminal: a hundred columns, one line per lane, with the same meanings as in
//! the page.

use std::fmt::Write;

use super::axis::TimeAxis;
use super::checks;
use super::escape::{short, terminal as safe};
use super::headline::{capital, duration, headline};
use super::lanes::short_token;
use super::narrative;
use super::timeline::{ClientLane, Mark, RegisterLane, ServerLane, Timeline, WriteOutcome};
use crate::check::Report;
use crate::history::{History, Register};
use crate::verdict::{Judgement, Outcome, Verdict};

/// Columns of the whole picture.
const COLUMNS: usize = 100;
/// Columns of the names of lanes.
const NAMES: usize = 12;
/// Columns of the lanes themselves.
const WIDE: usize = COLUMNS - NAMES - 1;
/// The most faults that are drawn.
const MAX_FAULTS: usize = 8;

const LEGEND: &str = "┄ waits  █ holds  ▒ past its deadline  ‡ renews  x lost or ended  \
                      ? no response\no reads  ● accepted  ◆ accepted, another one lost  ⊘ refused";

/// The signs on the lane of a register, from the least important to the most important one.
const SIGNS: [(&str, &str); 4] = [("o", "2"), ("●", "32"), ("◆", "31;1"), ("⊘", "2")];

/// The colours of clients, in their order.
const CLIENT_COLOURS: [&str; 6] = ["34", "35", "36", "33", "95", "94"];

/// Draws a run as lines of text, with colours if wanted.
///
/// # Examples
///
/// ```
/// # let line = concat!(r#"{"scenario":"pause","about":"","lock":"l","server":"","seed":1,"#,
/// #     r#""expected":"holds","lanes":[]}"#);
/// # let history = tenure_lab::history::History::read(line.as_bytes())?;
/// use tenure_lab::{check, picture, verdict::Judgement};
///
/// let report = check::check(&history);
/// let judgement = Judgement::of(&history.header, &report);
/// let text = picture::terminal(&history, &report, &judgement, false);
/// assert!(text.contains("Never granted"));
/// # anyhow::Ok(())
/// ```
pub fn terminal(history: &History, report: &Report, judgement: &Judgement, colour: bool) -> String {
    let timeline = Timeline::of(history, report);
    let mut canvas = TerminalCanvas { out: String::new(), colour, axis: &timeline.axis };
    let header = &history.header;
    let title = format!("{} on {}", header.scenario, header.lock);
    canvas.line("1", &capital(&headline(report)));
    canvas.line("2", &format!("{title}  {}", header.server));
    canvas.line("", "");
    canvas.axis();
    canvas.faults(&timeline);
    canvas.overlaps(&timeline, report);
    for (at, client) in timeline.clients.iter().enumerate() {
        canvas.client(client, at);
    }
    if timeline.left_out > 0 {
        canvas.line("2", &format!("{:NAMES$} and {} clients more", "", timeline.left_out));
    }
    let names: Vec<_> = timeline.clients.iter().map(|client| client.name).collect();
    for server in &timeline.servers {
        canvas.server(server, &names);
    }
    for row in &timeline.registers {
        canvas.register(row);
    }
    canvas.line("", "");
    canvas.line("2", LEGEND);
    canvas.line("", "");
    for line in wrapped(&narrative::caption(report, judgement.measured)) {
        canvas.line("", &line);
    }
    canvas.line("", "");
    canvas.verdict(judgement);
    canvas.out
}

/// How long two clients held at once: inside both deadlines, as in the headline, and in all if that
/// is longer.
fn overlap_text(report: &Report) -> String {
    let (certain, all) = (report.overlap.certain.total, report.overlap.believed.total);
    match certain {
        0 => duration(all),
        _ if all > certain => {
            format!("{} inside both deadlines, {} in all", duration(certain), duration(all))
        }
        _ => duration(certain),
    }
}

/// The results of all checks, one per line.
pub fn table(report: &Report, judgement: &Judgement) -> String {
    let lines = checks::lines(report, judgement);
    let mut text = String::new();
    for (name, result) in lines {
        // Writing to a string cannot fail.
        let _ignored = writeln!(text, "{name:30} {}", safe(&result));
    }
    text
}

/// The lines so far, and the axis.
struct TerminalCanvas<'a> {
    out: String,
    colour: bool,
    axis: &'a TimeAxis,
}

/// One character of a lane, and its colour.
type Cells = Vec<(char, &'static str)>;

impl TerminalCanvas<'_> {
    fn column(&self, at: u64) -> usize {
        (self.axis.position(at) * (WIDE - 1) as f64) as usize
    }

    fn line(&mut self, style: &str, text: &str) {
        for line in text.split('\n') {
            let line = safe(line.trim_end());
            if self.colour && !style.is_empty() && !line.is_empty() {
                let _ignored = writeln!(self.out, "\x1b[{style}m{line}\x1b[0m");
            } else {
                let _ignored = writeln!(self.out, "{line}");
            }
        }
    }

    /// Writes a lane: its name, then its cells, with one escape sequence per run of a colour.
    fn lane(&mut self, name: &str, style: &str, cells: &Cells) {
        let name = safe(&short(&safe(name), NAMES - 1));
        let pad = " ".repeat(NAMES.saturating_sub(name.chars().count()));
        let paint = |style: &str, text: &str| {
            if self.colour && !style.is_empty() {
                format!("\x1b[{style}m{text}\x1b[0m")
            } else {
                text.to_owned()
            }
        };
        let mut line = format!("{}{pad}", paint(style, &name));
        let last = cells.iter().rposition(|(c, _)| *c != ' ').map_or(0, |at| at + 1);
        for run in cells[..last].chunk_by(|a, b| a.1 == b.1) {
            let text: String = run.iter().map(|(c, _)| c).collect();
            line += &paint(run[0].1, &text);
        }
        let _ignored = writeln!(self.out, "{}", line.trim_end());
    }

    fn axis(&mut self) {
        let mut cells = blank();
        let (from, to) = (self.axis.from(), self.axis.to());
        let ends = self.axis.folds.iter().flat_map(|&(from, to)| [from, to]);
        let mut moments: Vec<u64> = if self.axis.folds.is_empty() {
            (0..=4).map(|part| from + (to - from) / 4 * part).collect()
        } else {
            [from].into_iter().chain(ends).chain([to]).collect()
        };
        moments.sort_unstable();
        let mut free = 0;
        for at in moments {
            let label = format!("{:.2}s", at as f64 / 1e9);
            let start = self.column(at).min(WIDE - label.len().min(WIDE));
            if start >= free {
                put(&mut cells, start, &label, "2");
                free = start + label.len() + 1;
            }
        }
        for &(from, to) in &self.axis.folds {
            put(&mut cells, self.column(from / 2 + to / 2), "≈", "2");
        }
        self.lane("", "", &cells);
    }

    fn faults(&mut self, timeline: &Timeline<'_>) {
        for fault in timeline.faults.iter().take(MAX_FAULTS) {
            let mut cells = blank();
            let from = self.column(fault.from);
            let to = fault.to.map_or(from, |to| self.column(to));
            fill(&mut cells, from, to, if fault.to.is_some() { '━' } else { '↯' }, "33");
            let label = short(&safe(fault.text), WIDE - 4);
            let wide = label.chars().count() + 1;
            // Beside the bar if there is room, else on it.
            let start = if to + 2 + wide <= WIDE {
                to + 2
            } else if from > wide + 2 && fault.to.is_some() {
                from - wide - 1
            } else {
                (from + 2).min(WIDE - wide).max(2)
            };
            put(&mut cells, start, &label, "33");
            if fault.to.is_none() {
                put(&mut cells, from.min(start.saturating_sub(2)), "↯", "33");
            }
            self.lane("fault", "33", &cells);
        }
    }

    fn overlaps(&mut self, timeline: &Timeline<'_>, report: &Report) {
        if timeline.bands.is_empty() {
            return;
        }
        let mut cells = blank();
        for band in &timeline.bands {
            let (from, to) = (self.column(band.from), self.column(band.to));
            fill(&mut cells, from, to, '▓', "31");
        }
        let label = format!(" two holders, {} ", overlap_text(report));
        let first = self.column(timeline.bands[0].from);
        let start = first.saturating_sub(label.len());
        put(&mut cells, start, &label, "31;1");
        self.lane("overlap", "31;1", &cells);
    }

    fn client(&mut self, client: &ClientLane<'_>, number: usize) {
        let style = CLIENT_COLOURS[number % CLIENT_COLOURS.len()];
        let mut cells = blank();
        for &(from, to) in &client.waits {
            fill(&mut cells, self.column(from), self.column(to), '┄', style);
        }
        for bar in &client.holds {
            fill(&mut cells, self.column(bar.from), self.column(bar.to), '▒', style);
            for &(from, to) in &bar.inside {
                fill(&mut cells, self.column(from), self.column(to), '█', style);
            }
            for &at in &bar.renewed {
                put(&mut cells, self.column(at), "‡", style);
            }
            let token =
                bar.token.map(|token| format!(" {} ", short_token(token))).unwrap_or_default();
            let from = self.column(bar.from);
            if !token.is_empty() && from + token.chars().count() + 2 < self.column(bar.to) {
                put(&mut cells, from + 1, &token, style);
            }
        }
        for &(at, mark) in &client.marks {
            let sign = match mark {
                Mark::Refused => "-",
                Mark::NoResponse => "?",
                Mark::Lost | Mark::Ended => "x",
            };
            put(&mut cells, self.column(at), sign, "1");
        }
        self.lane(client.name, style, &cells);
    }

    fn server(&mut self, server: &ServerLane<'_>, names: &[&str]) {
        let mut cells = blank();
        for &(from, to) in &server.outages {
            fill(&mut cells, self.column(from), self.column(to), '╌', "33");
        }
        for &(holder, from, to) in &server.leases {
            let client = holder.and_then(|holder| names.iter().position(|name| *name == holder));
            let style = client.map_or("2", |client| CLIENT_COLOURS[client % CLIENT_COLOURS.len()]);
            let (from, to) = (self.column(from), self.column(to));
            fill(&mut cells, from, to, '▬', style);
            let label = short(&safe(holder.unwrap_or_default()), 12);
            if !label.is_empty() && from + label.chars().count() + 4 < to {
                put(&mut cells, from + 1, &format!(" {label} "), style);
            }
        }
        self.lane(server.name, "1", &cells);
    }

    fn register(&mut self, row: &RegisterLane) {
        let name = match row.register {
            Register::Plain => "no fence",
            Register::Write => "on write",
            Register::ReadWrite => "read+write",
        };
        let mut cells = blank();
        let reads = row.updates.iter().filter_map(|update| update.read);
        let reads = reads.map(|(at, refused)| (if refused { 3 } else { 0 }, at));
        let writes = row.updates.iter().filter_map(|update| update.wrote);
        let writes = writes.map(|(at, outcome)| match outcome {
            WriteOutcome::Accepted => (1, at),
            WriteOutcome::Stale => (2, at),
            WriteOutcome::Refused => (3, at),
        });
        // Where several signs fall into one column, the last and most important one stays.
        let mut signs: Vec<(usize, u64)> = reads.chain(writes).collect();
        signs.sort_unstable();
        for (sign, at) in signs {
            let (sign, style) = SIGNS[sign];
            put(&mut cells, self.column(at), sign, style);
        }
        self.lane(name, "1", &cells);
    }

    fn verdict(&mut self, judgement: &Judgement) {
        let style = match (judgement.outcome, judgement.measured) {
            (Outcome::AsExpected, Verdict::Holds) => "32;1",
            (Outcome::AsExpected, _) => "1",
            _ => "31;1",
        };
        let expected = judgement.expected.as_ref().map(ToString::to_string).unwrap_or_default();
        let outcome = match judgement.outcome {
            Outcome::Differs => format!("differs: expected {expected}"),
            outcome => outcome.text().to_owned(),
        };
        self.line(style, &format!("{} ({outcome})", capital(&judgement.why)));
    }
}

fn blank() -> Cells {
    vec![(' ', ""); WIDE]
}

fn fill(cells: &mut Cells, from: usize, to: usize, c: char, style: &'static str) {
    let to = to.min(WIDE - 1);
    cells[from.min(to)..=to].fill((c, style));
}

fn put(cells: &mut Cells, from: usize, text: &str, style: &'static str) {
    for (cell, c) in cells.iter_mut().skip(from).zip(text.chars()) {
        *cell = (c, style);
    }
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        if lines[last].chars().count() + word.chars().count() >= COLUMNS {
            lines.push(word.to_owned());
        } else {
            if !lines[last].is_empty() {
                lines[last].push(' ');
            }
            lines[last].push_str(word);
        }
    }
    lines
}
