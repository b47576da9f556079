//! All tables of a run as one HTML file that needs nothing else: a bar for each subject.

use std::fmt::Write;

use crate::figures::{Row, Table};

const STYLE: &str = "body{font:14px/1.4 system-ui,sans-serif;margin:2em auto;max-width:62em;\
    padding:0 1em}h2{margin:2em 0 .3em}svg{width:100%;height:auto}text{font:12px system-ui}\
    .bar{fill:#7a9cc6}.first{fill:#999}.own{fill:#2f6f4f}.figures{fill:#555}";
const ROW: usize = 26;
const NAME: usize = 300;
const BAR: usize = 380;
const WIDTH: usize = 960;

/// Draws all tables.
pub(crate) fn html(tables: &[Table]) -> String {
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>tenure-bench\
         </title><style>{STYLE}</style></head><body>\n<h1>tenure-bench</h1>\n<p>Bars are times: \
         shorter is faster. Compare only inside one picture. Grey is the bare client, green is \
         tenure.</p>\n"
    );
    for table in tables {
        let (scenario, about) = (escaped(&table.scenario), escaped(&table.about));
        text += &format!("<h2>{scenario}</h2>\n<p>{about}</p>\n{}\n", picture(table));
    }
    text + "</body></html>\n"
}

fn picture(table: &Table) -> String {
    let height = table.rows.len() * ROW + 6;
    let longest = table.rows.iter().filter_map(length).fold(0.0, f64::max);
    let mut text = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n");
    for (number, row) in table.rows.iter().enumerate() {
        let top = number * ROW + 4;
        let base = top + 15;
        let name = escaped(&row.subject);
        // Writing to a string cannot fail.
        let _ = write!(text, "<text x=\"0\" y=\"{base}\">{name}</text>");
        let width = length(row).map_or(0.0, |value| value / longest.max(f64::MIN_POSITIVE));
        let width = width * BAR as f64;
        let class = class(number, row);
        let _ = write!(
            text,
            "<rect class=\"{class}\" x=\"{NAME}\" y=\"{top}\" width=\"{width:.1}\" height=\"20\"/>"
        );
        let (x, figures) = (NAME as f64 + width + 6.0, escaped(&figures(row)));
        let _ =
            writeln!(text, "<text class=\"figures\" x=\"{x:.1}\" y=\"{base}\">{figures}</text>");
    }
    text + "</svg>"
}

fn class(number: usize, row: &Row) -> &'static str {
    if row.subject.starts_with("tenure") {
        "own"
    } else if number == 0 {
        "first"
    } else {
        "bar"
    }
}

/// What the bar of a row shows.
fn length(row: &Row) -> Option<f64> {
    row.figure("us_per_op").or_else(|| row.figure("value"))
}

fn figures(row: &Row) -> String {
    if let Some(reason) = row.reason() {
        return format!("ignored: {}", reason.chars().take(70).collect::<String>());
    }
    let mut parts = Vec::new();
    if let Some(value) = row.figure("value") {
        parts.push(format!("{value:.2}"));
    }
    if let Some(time) = row.figure("us_per_op") {
        parts.push(format!("{time:.1} µs"));
    }
    if let Some(ratio) = row.figure("ratio") {
        parts.push(format!("×{ratio:.2}"));
    }
    if let (Some(client), Some(server)) = (row.figure("client_cpu_us"), row.figure("server_cpu_us"))
    {
        parts.push(format!("CPU {client:.0} + {server:.0} µs"));
    }
    parts.join(" · ")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_is_drawn_and_nothing_breaks_the_page() {
        let rows = vec![
            Row::new("bare <x>").with("us_per_op", 100.0),
            Row::new("tenure").with("us_per_op", 50.0),
            Row::ignored("peer", "no \"go\""),
        ];
        let mut table = Table { scenario: "s".into(), about: "a".into(), rows };
        table.add_ratios();
        let text = html(&[table]);
        assert!(text.contains("bare &lt;x&gt;") && text.contains("no &quot;go&quot;"), "{text}");
        assert!(text.contains("width=\"380.0\"") && text.contains("width=\"190.0\""), "{text}");
        assert!(!text.contains("http"), "the page needs nothing else");
    }
}
