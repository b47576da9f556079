//! `tenure doctor`: checks of the server, for what could break a guarantee.

use std::fmt::Write;

use serde::Serialize;
use tenure::backend::Reach;
use tenure::{Finding, Severity, blocking};

use crate::args::Doctor;
use crate::exit;
use crate::failure::Failure;
use crate::output::{self, Harmless, Paint};

/// A finding, as `--json` prints it. The names are a contract.
#[derive(Serialize)]
struct Row<'a> {
    severity: String,
    subject: &'a str,
    detail: &'a str,
    advice: &'a str,
}

pub(super) fn run(client: &blocking::Client, args: &Doctor) -> Result<u8, Failure> {
    let mut findings = client.doctor()?;
    findings.extend(reach_finding(client.info().reach));
    if args.json {
        let rows: Vec<_> = findings.iter().map(row).collect();
        output::print_json(&rows)?;
    } else {
        output::print(&describe(client.info().name, &findings, Paint::stdout()))?;
    }
    let fault = findings.iter().any(|finding| finding.severity == Severity::Fault);
    Ok(if fault { exit::NO } else { exit::DONE })
}

/// A store of one machine is fine unless clients on other machines need the same locks.
fn reach_finding(reach: Reach) -> Option<Finding> {
    let whom = match reach {
        Reach::Process => "this process",
        Reach::Machine => "this machine",
        _ => return None,
    };
    let finding = Finding::new(Severity::Notice, "reach", format!("excludes {whom} only"));
    Some(finding.advise("name a server if other machines take the same locks"))
}

fn row(finding: &Finding) -> Row<'_> {
    let Finding { subject, detail, advice, .. } = finding;
    Row { severity: finding.severity.to_string(), subject, detail, advice }
}

fn describe(server: &str, findings: &[Finding], paint: Paint) -> String {
    let mut text = String::new();
    for finding in findings {
        let subject = Harmless(&finding.subject);
        let detail = Harmless(&finding.detail);
        let severity = format!("{:8}", finding.severity);
        let severity =
            if finding.severity > Severity::Good { paint.bold(&severity) } else { severity };
        let _cannot_fail = writeln!(text, "{severity} {subject}: {detail}");
        if !finding.advice.is_empty() {
            let _cannot_fail = writeln!(text, "         try: {}", Harmless(&finding.advice));
        }
    }
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (faults, warnings) = (count(Severity::Fault), count(Severity::Warning));
    let _cannot_fail = writeln!(text, "{server}: {faults} faults, {warnings} warnings");
    text
}
