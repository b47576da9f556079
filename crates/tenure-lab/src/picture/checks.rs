//! The result of each checker as a pair of name and text, for pages and terminals.

use super::headline::duration;
use crate::check::Report;
use crate::check::overlap::Overlap;
use crate::check::resource::Tally;
use crate::verdict::Judgement;

/// Name and result of each check.
pub(super) fn lines(report: &Report, judgement: &Judgement) -> Vec<(&'static str, String)> {
    let expected = judgement.expected.as_ref().map_or("nothing known".into(), ToString::to_string);
    let mut lines = vec![
        ("verdict", judgement.why.clone()),
        ("expected", format!("{expected}: {}", judgement.outcome.text())),
        ("overlap inside the deadlines", overlap(&report.overlap.certain)),
        ("overlap in belief", overlap(&report.overlap.believed)),
        ("tokens", tokens(report)),
    ];
    let resource = &report.resource;
    for (name, tally) in [
        ("register without a fence", &resource.plain),
        ("register, fence on write", &resource.write),
        ("register, fence on read+write", &resource.read_write),
    ] {
        lines.extend(register(tally).map(|text| (name, text)));
    }
    lines.push(("longest gap while clients wait", gap(report)));
    lines.push(("fairness", fairness(report)));
    lines.push(("linearizable", linear(report)));
    for figure in &report.measured {
        let limit = figure.limit.map(|limit| format!(", limit {limit}")).unwrap_or_default();
        let text = format!("{}: {} {}{limit}", figure.name, figure.value, figure.unit);
        lines.push(("measured", text));
    }
    lines
}

fn overlap(overlap: &Overlap) -> String {
    match overlap.count {
        0 => "none".to_owned(),
        count => format!(
            "{count}, {} in all, at most {} holders at once",
            duration(overlap.total),
            overlap.holders
        ),
    }
}

fn tokens(report: &Report) -> String {
    let tokens = &report.tokens;
    match (tokens.given, tokens.missing) {
        (0, 0) => "no grants".to_owned(),
        (0, _) => "this lock gives none".to_owned(),
        (given, _) if tokens.sound() => format!("{given}, growing with every grant"),
        (given, missing) => format!(
            "{given}, of them {} given twice, {} not growing; {missing} grants without",
            tokens.equal, tokens.reversed
        ),
    }
}

fn register(tally: &Tally) -> Option<String> {
    (tally.reads + tally.accepted + tally.refused > 0).then(|| {
        format!(
            "{} updates accepted, {} refused, {} rest on an old read, {} lost",
            tally.accepted, tally.refused, tally.stale, tally.lost
        )
    })
}

fn gap(report: &Report) -> String {
    let lease = report.liveness.lease.map(|lease| format!(", lease {}", duration(lease)));
    format!("{}{}", duration(report.liveness.longest), lease.unwrap_or_default())
}

fn fairness(report: &Report) -> String {
    let fairness = &report.fairness;
    let jain = fairness.jain.map(|jain| format!(", Jain index {jain:.2}")).unwrap_or_default();
    format!(
        "passed by at most {} times{jain}; waits: half below {}, 99 % below {}, longest {}",
        fairness.bypass,
        duration(fairness.waits.p50),
        duration(fairness.waits.p99),
        duration(fairness.waits.max)
    )
}

fn linear(report: &Report) -> String {
    let linear = &report.linear;
    let windows = format!("{} steps in {} windows", linear.steps, linear.windows);
    match (linear.broken, linear.undecided) {
        (0, 0) => format!("yes, {windows}"),
        (0, undecided) => format!("{undecided} windows undecided of {windows}"),
        (broken, _) => format!("no: {broken} windows have no explanation, of {windows}"),
    }
}
