//! The table of verdicts: every scenario on every lock.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde::Serialize;

use crate::cell::CellResult;
use crate::picture::{self, headline};
use crate::scenarios::Scenario;
use crate::schemes::LockSpec;
use crate::verdict::{Outcome, Verdict};

/// Creates a new folder for histories, among the temporary files. Other users of the machine can
/// neither guess its name nor write to it.
///
/// # Errors
///
/// If it cannot be created.
pub fn new_history_folder() -> std::io::Result<PathBuf> {
    Ok(tempfile::Builder::new()
        .prefix("tenure-lab-runs-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir()?
        .keep())
}

/// The table of verdicts.
#[derive(Debug, Serialize)]
pub struct Matrix {
    scenarios: Vec<&'static str>,
    locks: Vec<&'static str>,
    cells: Vec<MatrixCell>,
}

/// All runs of a scenario on a lock.
#[derive(Debug, Serialize)]
pub struct MatrixCell {
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Name of the lock.
    pub lock: &'static str,
    /// The expected verdict; none if the fault cannot happen to this lock.
    pub expected: Option<&'static str>,
    /// The result of most runs: a symbol, or why there is none.
    pub measured: Option<String>,
    /// Number of runs that were as expected.
    pub as_expected: usize,
    /// The outcome of the worst run; none while there was no run.
    pub outcome: Option<Outcome>,
    /// All runs.
    pub runs: Vec<CellRun>,
    /// Why the fault cannot happen to this lock.
    #[serde(skip)]
    why_not: &'static str,
    /// The picture of one run: the first that was not as expected, or the last. Not part of the
    /// JSON.
    #[serde(skip)]
    figure: Option<String>,
}

/// One run of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct CellRun {
    /// The symbol of the verdict, or why there is none.
    pub measured: String,
    /// The outcome of the run.
    pub outcome: Outcome,
    /// What happened, in one line.
    pub headline: String,
    /// Duration of the run.
    pub seconds: f64,
    /// The file with its history, if that was kept.
    pub history: Option<PathBuf>,
}

impl CellRun {
    /// The result of a run, its duration, and the file with its history if that was kept.
    pub fn of(
        result: &anyhow::Result<CellResult>,
        seconds: f64,
        history: Option<PathBuf>,
    ) -> CellRun {
        let (measured, outcome, headline) = match result {
            Ok(CellResult::Run(run)) => {
                let symbol = run.judgement.measured.symbol();
                (symbol, run.judgement.outcome, headline(&run.report))
            }
            Ok(CellResult::Inapplicable(why)) => ("–", Outcome::Skipped, (*why).to_owned()),
            Ok(CellResult::Skipped(why)) => ("skipped", Outcome::Skipped, why.clone()),
            // The lab failed, not the lock: nothing is known about the lock.
            Err(error) => ("?", Outcome::Inconclusive, format!("{error:#}")),
        };
        CellRun { measured: measured.to_owned(), outcome, headline, seconds, history }
    }
}

impl Matrix {
    /// An empty table.
    pub fn new(scenarios: &[&'static Scenario], locks: &[&'static LockSpec]) -> Matrix {
        let cell = |scenario: &&'static Scenario, lock: &&'static LockSpec| MatrixCell {
            scenario: scenario.name,
            lock: lock.name,
            expected: scenario.expected(lock).ok(),
            measured: None,
            as_expected: 0,
            outcome: None,
            runs: Vec::new(),
            why_not: scenario.expected(lock).err().unwrap_or_default(),
            figure: None,
        };
        let cells = scenarios.iter().flat_map(|s| locks.iter().map(move |l| cell(s, l)));
        Matrix {
            cells: cells.collect(),
            scenarios: scenarios.iter().map(|scenario| scenario.name).collect(),
            locks: locks.iter().map(|lock| lock.name).collect(),
        }
    }

    /// Number of cells whose fault can happen.
    pub fn size(&self) -> usize {
        self.cells.iter().filter(|cell| cell.expected.is_some()).count()
    }

    /// Adds a run.
    pub fn add(
        &mut self,
        scenario: &Scenario,
        lock: &LockSpec,
        result: &anyhow::Result<CellResult>,
        run: CellRun,
    ) {
        let matches =
            |cell: &&mut MatrixCell| cell.scenario == scenario.name && cell.lock == lock.name;
        let Some(cell) = self.cells.iter_mut().find(matches) else { return };
        // Later runs replace the picture until one is not as expected.
        if let Ok(CellResult::Run(drawn)) = result
            && cell.outcome.is_none_or(|outcome| outcome == Outcome::AsExpected)
        {
            cell.figure = Some(picture::figure(&drawn.history, &drawn.report, &drawn.judgement));
        }
        cell.as_expected += usize::from(run.outcome == Outcome::AsExpected);
        cell.outcome = cell.outcome.into_iter().chain([run.outcome]).max_by_key(severity);
        cell.runs.push(run);
        cell.measured = cell.most_frequent();
    }

    /// Number of runs with this outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.all_runs().filter(|(_, run)| run.outcome == outcome).count()
    }

    fn all_runs(&self) -> impl Iterator<Item = (&MatrixCell, &CellRun)> {
        self.cells.iter().flat_map(|cell| cell.runs.iter().map(move |run| (cell, run)))
    }

    /// The worst outcome of the runs that were not skipped; none if all were.
    pub fn outcome(&self) -> Option<Outcome> {
        let measured = self.all_runs().map(|(_, run)| run.outcome);
        measured.filter(|outcome| *outcome != Outcome::Skipped).max_by_key(severity)
    }

    /// The table as a page, with one picture per cell.
    pub fn html(&self, about: &str) -> String {
        let find = |names: &[&str], name: &str| names.iter().position(|known| *known == name);
        let cells = self.cells.iter().map(|cell| picture::TableCell {
            row: find(&self.scenarios, cell.scenario).unwrap_or_default(),
            column: find(&self.locks, cell.lock).unwrap_or_default(),
            symbol: cell.measured.clone().unwrap_or_else(|| "–".to_owned()),
            expected: cell.expected.unwrap_or("–").to_owned(),
            outcome: cell.outcome,
            headline: cell.representative().map_or(cell.why_not, |run| &run.headline).to_owned(),
            runs: cell.runs.len(),
            as_expected: cell.as_expected,
            figure: cell.figure.clone(),
            link: None,
        });
        let scenario = |name: &&str| match Scenario::named(name) {
            Ok(known) => picture::Heading {
                name: known.name.to_owned(),
                id: known.id.to_owned(),
                about: known.about.to_owned(),
            },
            Err(_) => picture::Heading::default(),
        };
        let lock = |name: &&str| match LockSpec::named(name) {
            Ok(known) => picture::Heading {
                name: known.name.to_owned(),
                id: String::new(),
                about: format!("{} {}", known.about, known.flaw),
            },
            Err(_) => picture::Heading::default(),
        };
        picture::matrix(&picture::Table {
            rows: self.scenarios.iter().map(scenario).collect(),
            columns: self.locks.iter().map(lock).collect(),
            cells: cells.collect(),
            about: about.to_owned(),
        })
    }

    /// The table for a terminal: scenarios down, locks across by number.
    pub fn terminal(&self) -> String {
        let widest = self.scenarios.iter().map(|name| name.len()).max().unwrap_or(0).max(8);
        let texts: Vec<_> = self.cells.iter().map(MatrixCell::short_text).collect();
        let wide = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0).max(4);
        let mut text = String::from("\n");
        for (number, lock) in self.locks.iter().enumerate() {
            text += &format!("{:>2} {lock}\n", number + 1);
        }
        text += &format!("\n{:widest$}", "");
        for number in 1..=self.locks.len() {
            text += &format!(" {number:>wide$}");
        }
        text.push('\n');
        // The cells are in this order: scenario by scenario.
        for (scenario, row) in self.scenarios.iter().zip(texts.chunks(self.locks.len().max(1))) {
            text += &format!("{scenario:widest$}");
            for cell in row {
                text += &format!(" {cell:>wide$}");
            }
            text.push('\n');
        }
        text.push('\n');
        let measured = |symbol: &str| {
            self.cells.iter().flat_map(|cell| &cell.runs).any(|run| run.measured == symbol)
        };
        for verdict in Verdict::ALL.iter().filter(|verdict| measured(verdict.symbol())) {
            text += &format!("{:2} {}\n", verdict.symbol(), verdict.meaning());
        }
        text += "* differs from what is expected, ? inconclusive, skip: cannot be run here\n";
        if self.cells.iter().any(|cell| cell.runs.len() > 1) {
            text += "4/5: 4 of 5 runs are as expected; without a number all of them are\n";
        }
        text + &self.exceptions()
    }

    /// The runs that were not as expected, each with the command that shows its history.
    fn exceptions(&self) -> String {
        let bad = [Outcome::Differs, Outcome::Inconclusive];
        let mut text = String::new();
        for (cell, run) in self.all_runs().filter(|(_, run)| bad.contains(&run.outcome)) {
            let expected = cell.expected.unwrap_or("–").replace('|', " or ");
            text += &format!("\n{} on {}: {}", cell.scenario, cell.lock, run.measured);
            text += &format!(" where {expected} is expected ({})\n", run.outcome.text());
            text += &format!("  {}\n", run.headline);
            if let Some(history) = &run.history {
                text += &format!("  tenure lab replay {}\n", history.display());
            }
        }
        text
    }
}

impl MatrixCell {
    /// The result of most runs.
    fn most_frequent(&self) -> Option<String> {
        let count = |symbol: &str| self.runs.iter().filter(|run| run.measured == symbol).count();
        let most = self.runs.iter().max_by_key(|run| count(&run.measured));
        most.map(|run| run.measured.clone())
    }

    /// The first run with the worst outcome, or the last run if all are as expected.
    fn representative(&self) -> Option<&CellRun> {
        let worst = self.runs.iter().find(|run| Some(run.outcome) == self.outcome);
        worst.filter(|run| run.outcome != Outcome::AsExpected).or(self.runs.last())
    }

    /// The most frequent symbol, with a mark and a count unless all runs are as expected.
    fn short_text(&self) -> String {
        let symbol = self.measured.as_deref().unwrap_or("–");
        let count = match self.runs.len() {
            0 | 1 => String::new(),
            runs => format!(" {}/{runs}", self.as_expected),
        };
        match self.outcome {
            None => "–".to_owned(),
            Some(Outcome::AsExpected) => symbol.to_owned(),
            Some(Outcome::Differs) => format!("{symbol}*{count}"),
            Some(Outcome::Inconclusive) => format!("{}?{count}", symbol.trim_end_matches('?')),
            Some(Outcome::Skipped) => "skip".to_owned(),
        }
    }
}

/// Order of outcomes: one that differs says more than one that shows nothing.
fn severity(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::AsExpected => 0,
        Outcome::Skipped => 1,
        Outcome::Inconclusive => 2,
        Outcome::Differs => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::SCENARIOS;
    use crate::schemes::LOCKS;

    #[test]
    fn the_folder_for_histories_is_new_and_private() {
        let (one, other) = (new_history_folder().unwrap(), new_history_folder().unwrap());
        assert_ne!(one, other, "its name can be guessed");
        for folder in [one, other] {
            let mode = std::fs::metadata(&folder).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{mode:o}");
            std::fs::remove_dir(folder).unwrap();
        }
    }

    #[test]
    fn a_cell_counts_its_runs_and_names_the_history_of_one_that_differs() {
        let (scenario, lock) = (&SCENARIOS[0], &LOCKS[0]);
        let mut matrix = Matrix::new(&[scenario], &[lock]);
        let nothing = Err(anyhow::anyhow!("nothing to draw"));
        for outcome in [Outcome::AsExpected, Outcome::Differs, Outcome::AsExpected] {
            let measured = if outcome == Outcome::Differs { "T" } else { "U!" };
            let mut run = CellRun::of(&nothing, 1.0, Some("runs/2.jsonl".into()));
            run.measured = measured.to_owned();
            run.outcome = outcome;
            matrix.add(scenario, lock, &nothing, run);
        }
        let text = matrix.terminal();
        assert!(text.contains("U!* 2/3"), "{text}");
        assert!(text.contains("oversell on redis-setnx-expire: T where U! is expected"), "{text}");
        assert_eq!(text.matches("tenure lab replay runs/2.jsonl").count(), 1, "{text}");
        assert_eq!(matrix.outcome(), Some(Outcome::Differs));
        assert_eq!((matrix.size(), matrix.count(Outcome::AsExpected)), (1, 2));
    }
}
