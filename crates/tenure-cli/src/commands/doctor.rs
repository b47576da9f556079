//! `tenure doctor`: what on the server could break a promise, before it does.

use std::fmt::Write;

use serde::Serialize;
use tenure::backend::Reach;
use tenure::{Finding, Grade, blocking};

use crate::args::Doctor;
use crate::exit;
use crate::failure::Failure;
use crate::output::{self, Harmless, Paint};

/// A finding as machines read it. Stable.
#[derive(Serialize)]
struct Row<'a> {
    grade: String,
    subject: &'a str,
    detail: &'a str,
    advice: &'a str,
}

pub(super) fn run(client: &blocking::Client, args: &Doctor) -> Result<u8, Failure> {
    let mut findings = client.examine()?;
    findings.extend(reach_found(client.info().reach));
    if args.json {
        let rows: Vec<_> = findings.iter().map(row).collect();
        output::print_json(&rows)?;
    } else {
        output::print(&describe(client.info().name, &findings, Paint::stdout()))?;
    }
    let fault = findings.iter().any(|finding| finding.grade == Grade::Fault);
    Ok(if fault { exit::NO } else { exit::DONE })
}

/// A store of one machine is all right, unless its users are on several.
fn reach_found(reach: Reach) -> Option<Finding> {
    let whom = match reach {
        Reach::Process => "this process",
        Reach::Machine => "this machine",
        _ => return None,
    };
    let finding = Finding::new(Grade::Notice, "reach", format!("excludes {whom} only"));
    Some(finding.advise("name a server if other machines take the same locks"))
}

fn row(finding: &Finding) -> Row<'_> {
    let Finding { subject, detail, advice, .. } = finding;
    Row { grade: finding.grade.to_string(), subject, detail, advice }
}

fn describe(server: &str, findings: &[Finding], paint: Paint) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for finding in findings {
        let (subject, detail) = (Harmless(&finding.subject), Harmless(&finding.detail));
        let grade = format!("{:8}", finding.grade);
        let grade = if finding.grade > Grade::Good { paint.bold(&grade) } else { grade };
        let _always = writeln!(text, "{grade} {subject}: {detail}");
        if !finding.advice.is_empty() {
            let _always = writeln!(text, "         try: {}", Harmless(&finding.advice));
        }
    }
    let count = |grade| findings.iter().filter(|finding| finding.grade == grade).count();
    let (faults, warnings) = (count(Grade::Fault), count(Grade::Warning));
    let _always = writeln!(text, "{server}: {faults} faults, {warnings} warnings");
    text
}
