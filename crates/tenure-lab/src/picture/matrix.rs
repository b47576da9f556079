//! The table of verdicts as one page: a row per scenario, a column per lock, and the pictures of
//! the runs below.
//!
//! A verdict is shown by its symbol, and by a colour that differs in lightness as well.

use std::fmt::Write;

use super::escape::xml;
use super::page;
use crate::verdict::{Outcome, Verdict};

/// The content of the page.
///
/// # Examples
///
/// ```
/// use tenure_lab::picture::{self, Heading, Table, TableCell};
///
/// let head = |name: &str| Heading { name: name.into(), id: String::new(), about: String::new() };
/// let (rows, columns) = (vec![head("pause")], vec![head("redis")]);
/// let mut table = Table { rows, columns, ..Table::default() };
/// table.cells.push(TableCell { row: 0, column: 0, symbol: "U".into(), ..TableCell::default() });
/// assert!(picture::matrix(&table).contains("pause"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The scenarios.
    pub rows: Vec<Heading>,
    /// The locks.
    pub columns: Vec<Heading>,
    /// The cells, in any order; where there is none, the table is empty.
    pub cells: Vec<TableCell>,
    /// Text below the headline: when, where, with which servers.
    pub about: String,
}

/// The heading of a row or a column: a scenario or a lock.
#[derive(Clone, Debug, Default)]
pub struct Heading {
    /// Its name.
    pub name: String,
    /// Number in the catalogue, if it has one.
    pub id: String,
    /// One sentence about it.
    pub about: String,
}

/// One scenario on one lock.
#[derive(Clone, Debug, Default)]
pub struct TableCell {
    /// Index of its scenario.
    pub row: usize,
    /// Index of its lock.
    pub column: usize,
    /// Symbol of the measured verdict; other text is shown as it is.
    pub symbol: String,
    /// Symbol of the expected verdict.
    pub expected: String,
    /// The outcome; none if there was no run.
    pub outcome: Option<Outcome>,
    /// One line about it: the headline, or why there was no run.
    pub headline: String,
    /// Number of runs.
    pub runs: usize,
    /// Number of runs that were as expected.
    pub as_expected: usize,
    /// The picture of one run, as [`picture::figure`](super::figure) makes it.
    pub figure: Option<String>,
    /// Link to a page about it, instead of a figure in this page.
    pub link: Option<String>,
}

/// Draws the table as one self-contained page.
pub fn matrix(table: &Table) -> String {
    let counts = counts(table);
    let mut body = format!(
        "<div class=\"top\"><span class=\"brand\">tenure lab</span><span>what breaks which \
         lock</span></div>\n<h1>{counts}</h1>\n<p class=\"about\">{}</p>\n",
        xml(&table.about)
    );
    body += &grid(table);
    body += &keys(table);
    body += &runs(table);
    let body = format!("<style>{}</style>{body}", include_str!("matrix.css"));
    let page = page::document("What breaks which lock · tenure lab", &body, "");
    page.replacen("<main>", "<main class=\"wide\">", 1)
}

fn counts(table: &Table) -> String {
    let count = |outcome| table.cells.iter().filter(|cell| cell.outcome == Some(outcome)).count();
    let run = table.cells.iter().filter(|cell| cell.outcome.is_some()).count();
    let skipped = count(Outcome::Skipped);
    let mut parts = vec![
        format!("{} verdicts measured", run - skipped),
        format!("{} as expected", count(Outcome::AsExpected)),
    ];
    for (outcome, word) in
        [(Outcome::Differs, "not as expected"), (Outcome::Inconclusive, "inconclusive")]
    {
        if count(outcome) > 0 {
            parts.push(format!("{} {word}", count(outcome)));
        }
    }
    if skipped > 0 {
        parts.push(format!("{skipped} skipped"));
    }
    parts.join(" · ")
}

fn grid(table: &Table) -> String {
    let mut text = String::from("<div class=\"scroll\"><table class=\"matrix\"><thead><tr>");
    text += "<th class=\"corner\"></th>";
    for column in &table.columns {
        let (name, about) = (xml(&column.name), xml(&column.about));
        let _ignored = write!(text, "<th scope=\"col\" title=\"{about}\"><span>{name}</span></th>");
    }
    text += "</tr></thead>\n<tbody>\n";
    for (number, row) in table.rows.iter().enumerate() {
        let (name, about) = (xml(&row.name), xml(&row.about));
        let _ignored = write!(text, "<tr><th scope=\"row\" title=\"{about}\">{name}</th>");
        for column in 0..table.columns.len() {
            let cell = table.cells.iter().find(|cell| cell.row == number && cell.column == column);
            text += &cell.map_or_else(|| "<td></td>".to_owned(), one_cell);
        }
        text += "</tr>\n";
    }
    text + "</tbody></table></div>\n"
}

fn one_cell(cell: &TableCell) -> String {
    let class = verdict_class(cell);
    let outcome = match cell.outcome {
        Some(Outcome::Differs) => " differs",
        Some(Outcome::Inconclusive) => " inconclusive",
        _ => "",
    };
    let symbol = match cell.outcome {
        None => "–".to_owned(),
        Some(Outcome::Skipped) => "·".to_owned(),
        Some(Outcome::Inconclusive) => format!("{}?", xml(cell.symbol.trim_end_matches('?'))),
        Some(_) => xml(&cell.symbol),
    };
    let count = match cell.outcome {
        None | Some(Outcome::Skipped) => String::new(),
        Some(_) if cell.runs < 2 => String::new(),
        Some(_) => format!("<small>{}/{}</small>", cell.as_expected, cell.runs),
    };
    let symbol = symbol + &count;
    let title = xml(&tooltip(cell));
    let target = match (&cell.link, &cell.figure) {
        (Some(link), _) => Some(xml(link)),
        (None, Some(_)) => Some(format!("#{}", anchor(cell))),
        _ => None,
    };
    match target {
        Some(href) => format!(
            "<td class=\"{class}{outcome}\"><a href=\"{href}\" title=\"{title}\">{symbol}</a></td>"
        ),
        None => {
            format!("<td class=\"{class}{outcome}\"><span title=\"{title}\">{symbol}</span></td>")
        }
    }
}

fn tooltip(cell: &TableCell) -> String {
    let mut text = cell.headline.clone();
    if matches!(cell.outcome, Some(Outcome::Differs | Outcome::Inconclusive)) {
        text += &format!(" (expected {})", cell.expected);
    }
    if cell.runs > 1 {
        text += &format!(" ({} of {} runs as expected)", cell.as_expected, cell.runs);
    }
    text
}

fn verdict_class(cell: &TableCell) -> String {
    let verdict = cell.symbol.parse::<Verdict>().ok();
    match (cell.outcome, verdict) {
        (None, _) => "v-inapplicable".to_owned(),
        (Some(Outcome::Skipped), _) | (_, None) => "v-none".to_owned(),
        (_, Some(verdict)) => format!("v-{}", verdict.name()),
    }
}

fn anchor(cell: &TableCell) -> String {
    format!("run-{}-{}", cell.row, cell.column)
}

/// The meaning of the symbols that the table has.
fn keys(table: &Table) -> String {
    let mut text = String::from("<ul class=\"keys\">\n");
    for verdict in Verdict::ALL {
        let used = |cell: &TableCell| verdict_class(cell) == format!("v-{}", verdict.name());
        if table.cells.iter().any(used) {
            let (name, symbol, meaning) = (verdict.name(), verdict.symbol(), verdict.meaning());
            let _ignored = writeln!(text, "<li><b class=\"v-{name}\">{symbol}</b>{meaning}</li>");
        }
    }
    let has = |outcome| table.cells.iter().any(|cell| cell.outcome == Some(outcome));
    for (outcome, class, symbol, meaning) in [
        (Outcome::Differs, "differs", "≠", "framed: not what is expected"),
        (Outcome::Inconclusive, "inconclusive", "?", "the run was not able to show it"),
        (Outcome::Skipped, "v-none", "·", "skipped: cannot be run here"),
    ] {
        if has(outcome) {
            let _ignored = writeln!(text, "<li><b class=\"{class}\">{symbol}</b>{meaning}</li>");
        }
    }
    text + "</ul>\n"
}

/// The pictures of the runs, folded; a link from the table unfolds one.
fn runs(table: &Table) -> String {
    let drawn: Vec<_> = table.cells.iter().filter(|cell| cell.figure.is_some()).collect();
    if drawn.is_empty() {
        return String::new();
    }
    let mut text = String::from("<h2>The runs</h2>\n");
    for cell in drawn {
        let name = |heads: &[Heading], at: usize| {
            heads.get(at).map(|head| xml(&head.name)).unwrap_or_default()
        };
        let (row, column) = (name(&table.rows, cell.row), name(&table.columns, cell.column));
        let (class, symbol) = (verdict_class(cell), xml(&cell.symbol));
        let _ignored = writeln!(
            text,
            "<details class=\"run\"><summary><span class=\"v {class}\">{symbol}</span><b>{row} on \
             {column}</b>{}</summary><div id=\"{}\">{}</div></details>",
            xml(&cell.headline),
            anchor(cell),
            cell.figure.as_deref().unwrap_or_default()
        );
    }
    text
}
