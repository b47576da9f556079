//! The headline of a run: what happened, in figures.

use crate::check::Report;
use crate::check::liveness::{Cause, Gap, Recovery};
use crate::check::resource::Tally;

/// The headline of a run, such as `2 holders for 312 ms · 1 of 2 updates lost · with
/// fence: 0 lost`.
///
/// # Examples
///
/// ```
/// # let line = concat!(r#"{"scenario":"s","about":"","lock":"l","server":"","seed":1,"#,
/// #     r#""expected":"holds","lanes":[]}"#);
/// # let history = tenure_lab::history::History::read(line.as_bytes())?;
/// let report = tenure_lab::check::check(&history);
/// assert_eq!(tenure_lab::picture::headline(&report), "never granted");
/// # anyhow::Ok(())
/// ```
pub fn headline(report: &Report) -> String {
    let mut parts = vec![holders(report)];
    // Where there was harm, a wait does not matter.
    if !report.control.harmed && report.overlap.certain.count == 0 {
        parts = stuck(report).into_iter().chain(parts).collect();
    }
    parts.extend(updates(report));
    if report.tokens.equal > 0 {
        parts.push(plural(report.tokens.equal, "token given twice", "tokens given twice"));
    } else if report.tokens.reversed > 0 {
        parts.push(plural(report.tokens.reversed, "token went back", "tokens went back"));
    }
    let limited = report.measured.iter().filter(|figure| figure.limit.is_some());
    parts.extend(limited.map(|figure| {
        let limit = figure.limit.unwrap_or_default();
        format!("{} {} (limit {})", short(figure.value), figure.name, short(limit))
    }));
    parts.join(" · ")
}

/// A duration in nanoseconds as text: `312 ms`, `1.52 s`.
pub fn duration(nanos: u64) -> String {
    let (micros, millis) = (nanos / 1000, nanos / 1_000_000);
    match millis {
        0 if micros == 0 => format!("{nanos} ns"),
        0 => format!("{micros} µs"),
        1..1000 => format!("{millis} ms"),
        1000..100_000 => format!("{:.2} s", nanos as f64 / 1e9),
        _ => format!("{} s", millis / 1000),
    }
}

/// The text with a capital letter.
pub(super) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    first + letters.as_str()
}

/// The text with a capital letter and a full stop.
pub(super) fn sentence(text: &str) -> String {
    let ends = text.is_empty() || text.ends_with(['.', '?', '!']);
    capital(text) + if ends { "" } else { "." }
}

fn holders(report: &Report) -> String {
    let (certain, believed) = (&report.overlap.certain, &report.overlap.believed);
    if certain.count > 0 {
        return format!("{} holders for {}", certain.holders, duration(certain.total));
    }
    let harmed = report.control.harmed;
    match believed.holders {
        0 => "never granted".to_owned(),
        2.. if harmed => {
            format!("{} holders for {}", believed.holders, duration(believed.total))
        }
        // A holder that is past its deadline and stopped does no harm: it does not count.
        _ => "1 holder at a time".to_owned(),
    }
}

fn stuck(report: &Report) -> Option<String> {
    let worst = |gap: &&Gap| gap.recovery == report.liveness.worst;
    let gap = report.liveness.gaps.iter().filter(worst).max_by_key(|gap| gap.to - gap.from)?;
    let time = duration(gap.to - gap.from);
    let after = match gap.cause {
        Cause::Ended => " after the holder's death",
        Cause::Fault => " while the holder was out",
        Cause::Start | Cause::Released | Cause::Lost | Cause::Deadline => "",
    };
    match gap.recovery {
        Recovery::Soon if gap.cause == Cause::Ended => Some(format!("free {time}{after}")),
        Recovery::Soon => None,
        Recovery::Lease if gap.cause == Cause::Start => Some(format!("not granted for {time}")),
        Recovery::Lease if after.is_empty() => Some(format!("stuck until the lease ended, {time}")),
        Recovery::Lease => Some(format!("stuck for {time}{after}")),
        Recovery::Longer => Some(format!("stuck for {time}, longer than the lease")),
        Recovery::Never => Some(format!("stuck for {time}, and for ever")),
    }
}

fn updates(report: &Report) -> Vec<String> {
    let plain = &report.resource.plain;
    if plain.accepted == 0 {
        return Vec::new();
    }
    if plain.lost == 0 {
        return vec!["no update lost".to_owned()];
    }
    let mut parts = vec![lost_updates(plain)];
    let fenced = &report.resource.read_write;
    if fenced.accepted + fenced.refused > 0 {
        parts.push(format!("with fence: {} lost", fenced.lost));
    }
    parts
}

fn lost_updates(tally: &Tally) -> String {
    let word = if tally.accepted == 1 { "update" } else { "updates" };
    format!("{} of {} {word} lost", tally.lost, tally.accepted)
}

fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn short(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value}") } else { format!("{value:.1}") }
}
