//! What `tenure lab run` plays if no lock is named: the lock that most programs write by hand, then
//! tenure's; and the lines that compare them. All figures are those of the runs.

use tenure_lab::cell::{CellResult, Run};
use tenure_lab::check::resource::Tally;
use tenure_lab::history::Register;
use tenure_lab::scenarios::Scenario;
use tenure_lab::schemes::{LOCKS, LockSpec};

use crate::output::Harmless;

/// The lock that most programs write by hand, and tenure's on the same server.
const COMPARED: [&str; 2] = ["redis-set-nx", "redis"];

/// The locks to play, of those to which the fault can happen.
pub(super) fn locks(scenario: &Scenario) -> Vec<&'static LockSpec> {
    let applies = |lock: &&LockSpec| scenario.expected(lock).is_ok();
    let mut locks: Vec<_> =
        LOCKS.iter().filter(|lock| COMPARED.contains(&lock.name)).filter(applies).collect();
    if locks.iter().all(|lock| !is_tenure(lock)) {
        locks.extend(LOCKS.iter().filter(|lock| is_tenure(lock)).find(applies));
    }
    locks
}

fn is_tenure(lock: &LockSpec) -> bool {
    lock.flaw.is_empty()
}

/// A line for each lock. Where data was written under tenure's lock, the data without a fence and
/// that with one have a line each: every run has both, side by side.
pub(super) fn text(results: &[(&'static LockSpec, CellResult)]) -> String {
    let mut lines: Vec<(String, String)> = Vec::new();
    for (lock, result) in results {
        let name = if is_tenure(lock) { "tenure" } else { "SET NX, DEL" };
        match result {
            CellResult::Run(run) => lines.extend(of_run(name, is_tenure(lock), run)),
            CellResult::Inapplicable(reason) => lines.push((name.to_owned(), (*reason).to_owned())),
            CellResult::Skipped(reason) => {
                lines.push((name.to_owned(), format!("skipped: {}", Harmless(reason))));
            }
        }
    }
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = lines.iter().map(|(name, result)| format!("{name:width$}  {result}\n"));
    format!("\n{}", lines.collect::<String>())
}

fn of_run(name: &str, is_tenure: bool, run: &Run) -> Vec<(String, String)> {
    let report = &run.report;
    let tickets = report.measured.iter().find(|figure| figure.name == "tickets");
    let Some(tickets) = tickets.map(|figure| figure.value) else {
        return vec![(name.to_owned(), run.judgement.measured.meaning().to_owned())];
    };
    let (plain, fenced) =
        (report.resource.of(Register::Plain), report.resource.of(Register::ReadWrite));
    if is_tenure {
        return vec![
            (name.to_owned(), sale(plain, tickets)),
            (format!("{name} with a fence"), sale(fenced, tickets)),
        ];
    }
    let no_fence = if report.tokens.missing > 0 && fenced.lost > 0 {
        "; it gives no token, so no fence can help"
    } else {
        ""
    };
    vec![(name.to_owned(), format!("{}{no_fence}", sale(plain, tickets)))]
}

/// What was sold: an accepted update is a sale, a lost one is a ticket that was sold twice.
fn sale(tally: &Tally, tickets: f64) -> String {
    let sold = tally.accepted;
    let twice = match tally.lost {
        0 => "none sold twice".to_owned(),
        1 => "1 ticket sold twice".to_owned(),
        lost => format!("{lost} tickets sold twice"),
    };
    let refused = match tally.refused {
        0 => String::new(),
        1 => "; the late sale of the paused clerk was refused".to_owned(),
        refused => format!("; {refused} late sales were refused"),
    };
    format!("{tickets} tickets, {sold} sales: {twice}{refused}")
}
