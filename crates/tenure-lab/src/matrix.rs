//! The table of verdicts, from real runs.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde::Serialize;

use crate::picture::{self, headline};
use crate::run::Played;
use crate::scenarios::Scenario;
use crate::schemes::Lock;
use crate::verdict::Outcome;

/// A new folder for histories that are worth keeping, among the temporary files. Nobody else can
/// have made it, and nobody else can write to it.
///
/// # Errors
///
/// If it cannot be made.
pub fn folder() -> std::io::Result<PathBuf> {
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
    cells: Vec<Cell>,
}

/// What was measured of a scenario on a lock, over all of its runs.
#[derive(Debug, Serialize)]
pub struct Cell {
    /// The scenario.
    pub scenario: &'static str,
    /// The lock.
    pub lock: &'static str,
    /// What the catalogue expects; none if the fault cannot happen.
    pub expected: Option<&'static str>,
    /// What most runs measured: a symbol, or why there is none.
    pub measured: Option<String>,
    /// How many runs were as expected.
    pub as_expected: usize,
    /// How the worst run came out; none while there was no run.
    pub outcome: Option<Outcome>,
    /// Every run.
    pub runs: Vec<Round>,
    /// Why the fault cannot happen.
    #[serde(skip)]
    why_not: &'static str,
    /// The picture of a run, the last or the first that was not as expected; left out of what
    /// programs read.
    #[serde(skip)]
    figure: Option<String>,
}

/// One run of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// What was measured: a symbol, or why there is none.
    pub measured: String,
    /// How that compares with what is expected.
    pub outcome: Outcome,
    /// What happened, in a line.
    pub headline: String,
    /// How long it took.
    pub seconds: f64,
    /// Where its history is, if that was kept.
    pub history: Option<PathBuf>,
}

impl Round {
    /// What came of a run that took so long, and its history if that was kept.
    pub fn of(played: &anyhow::Result<Played>, seconds: f64, history: Option<PathBuf>) -> Round {
        let (measured, outcome, headline) = match played {
            Ok(Played::Run(run)) => {
                let symbol = run.judgement.measured.symbol();
                (symbol, run.judgement.outcome, headline(&run.report))
            }
            Ok(Played::Inapplicable(why)) => ("–", Outcome::Skipped, (*why).to_owned()),
            Ok(Played::Skipped(why)) => ("skipped", Outcome::Skipped, why.clone()),
            // The lab failed, not the lock: nothing is known.
            Err(error) => ("?", Outcome::Inconclusive, format!("{error:#}")),
        };
        Round { measured: measured.to_owned(), outcome, headline, seconds, history }
    }
}

impl Matrix {
    /// An empty table.
    pub fn new(scenarios: &[&'static Scenario], locks: &[&'static Lock]) -> Matrix {
        let cell = |scenario: &&'static Scenario, lock: &&'static Lock| Cell {
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

    /// How many cells can be played.
    pub fn size(&self) -> usize {
        self.cells.iter().filter(|cell| cell.expected.is_some()).count()
    }

    /// Takes a run down.
    pub fn take(
        &mut self,
        scenario: &Scenario,
        lock: &Lock,
        played: &anyhow::Result<Played>,
        round: Round,
    ) {
        let fits = |cell: &&mut Cell| cell.scenario == scenario.name && cell.lock == lock.name;
        let Some(cell) = self.cells.iter_mut().find(fits) else { return };
        // The picture that is worth a look.
        if let Ok(Played::Run(run)) = played
            && cell.outcome.is_none_or(|outcome| outcome == Outcome::AsExpected)
        {
            cell.figure = Some(picture::figure(&run.history, &run.report, &run.judgement));
        }
        cell.as_expected += usize::from(round.outcome == Outcome::AsExpected);
        cell.outcome = cell.outcome.into_iter().chain([round.outcome]).max_by_key(badness);
        cell.runs.push(round);
        cell.measured = cell.usual();
    }

    /// How many runs came out like this.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.rounds().filter(|(_, round)| round.outcome == outcome).count()
    }

    fn rounds(&self) -> impl Iterator<Item = (&Cell, &Round)> {
        self.cells.iter().flat_map(|cell| cell.runs.iter().map(move |round| (cell, round)))
    }

    /// How the worst cell that was measured came out; none if nothing was measured.
    pub fn outcome(&self) -> Option<Outcome> {
        let measured = self.rounds().map(|(_, round)| round.outcome);
        measured.filter(|outcome| *outcome != Outcome::Skipped).max_by_key(badness)
    }

    /// The table as a page, with the picture of every cell's last run.
    pub fn html(&self, about: &str) -> String {
        let find = |names: &[&str], name: &str| names.iter().position(|known| *known == name);
        let cells = self.cells.iter().map(|cell| picture::Cell {
            row: find(&self.scenarios, cell.scenario).unwrap_or_default(),
            column: find(&self.locks, cell.lock).unwrap_or_default(),
            symbol: cell.measured.clone().unwrap_or_else(|| "–".to_owned()),
            expected: cell.expected.unwrap_or("–").to_owned(),
            outcome: cell.outcome,
            headline: cell.telling().map_or(cell.why_not, |round| &round.headline).to_owned(),
            runs: cell.runs.len(),
            as_expected: cell.as_expected,
            figure: cell.figure.clone(),
            link: None,
        });
        let scenario = |name: &&str| match Scenario::named(name) {
            Ok(known) => picture::Head {
                name: known.name.to_owned(),
                id: known.id.to_owned(),
                about: known.about.to_owned(),
            },
            Err(_) => picture::Head::default(),
        };
        let lock = |name: &&str| match Lock::named(name) {
            Ok(known) => picture::Head {
                name: known.name.to_owned(),
                id: String::new(),
                about: format!("{} {}", known.about, known.flaw),
            },
            Err(_) => picture::Head::default(),
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
        let shorts: Vec<_> = self.cells.iter().map(Cell::short).collect();
        let wide = shorts.iter().map(|short| short.chars().count()).max().unwrap_or(0).max(4);
        let mut text = String::from("\n");
        for (number, lock) in self.locks.iter().enumerate() {
            text += &format!("{:>2} {lock}\n", number + 1);
        }
        text += &format!("\n{:widest$}", "");
        for number in 1..=self.locks.len() {
            text += &format!(" {number:>wide$}");
        }
        text.push('\n');
        // The cells are in this order.
        for (scenario, row) in self.scenarios.iter().zip(shorts.chunks(self.locks.len().max(1))) {
            text += &format!("{scenario:widest$}");
            for short in row {
                text += &format!(" {short:>wide$}");
            }
            text.push('\n');
        }
        text += "\n* differs from what is expected, ? inconclusive, skip: not to be had here\n";
        if self.cells.iter().any(|cell| cell.runs.len() > 1) {
            text +=
                "4/5: so many of so many runs are as expected; all of them where none is said\n";
        }
        text + &self.exceptions()
    }

    /// The runs that were not as expected, each with its history.
    fn exceptions(&self) -> String {
        let bad = [Outcome::Differs, Outcome::Inconclusive];
        let mut text = String::new();
        for (cell, round) in self.rounds().filter(|(_, round)| bad.contains(&round.outcome)) {
            let expected = cell.expected.unwrap_or("–").replace('|', " or ");
            text += &format!("\n{} on {}: {}", cell.scenario, cell.lock, round.measured);
            text += &format!(" where {expected} is expected ({})\n", round.outcome.text());
            text += &format!("  {}\n", round.headline);
            if let Some(history) = &round.history {
                text += &format!("  tenure lab replay {}\n", history.display());
            }
        }
        text
    }
}

impl Cell {
    /// What most runs measured.
    fn usual(&self) -> Option<String> {
        let count = |symbol: &str| self.runs.iter().filter(|run| run.measured == symbol).count();
        let usual = self.runs.iter().max_by_key(|run| count(&run.measured));
        usual.map(|run| run.measured.clone())
    }

    /// The run that says most: the first that came out worst, or the last.
    fn telling(&self) -> Option<&Round> {
        let worst = self.runs.iter().find(|run| Some(run.outcome) == self.outcome);
        worst.filter(|run| run.outcome != Outcome::AsExpected).or(self.runs.last())
    }

    /// The usual symbol, with a mark and a count unless all is as expected.
    fn short(&self) -> String {
        let usual = self.measured.as_deref().unwrap_or("–");
        let count = match self.runs.len() {
            0 | 1 => String::new(),
            runs => format!(" {}/{runs}", self.as_expected),
        };
        match self.outcome {
            None => "–".to_owned(),
            Some(Outcome::AsExpected) => usual.to_owned(),
            Some(Outcome::Differs) => format!("{usual}*{count}"),
            Some(Outcome::Inconclusive) => format!("{}?{count}", usual.trim_end_matches('?')),
            Some(Outcome::Skipped) => "skip".to_owned(),
        }
    }
}

/// One that differs says more than one that shows nothing.
fn badness(outcome: &Outcome) -> u8 {
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
    fn the_folder_for_histories_is_new_and_nobody_elses() {
        let (one, other) = (folder().unwrap(), folder().unwrap());
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
            let mut round = Round::of(&nothing, 1.0, Some("runs/2.jsonl".into()));
            (round.measured, round.outcome) = (measured.to_owned(), outcome);
            matrix.take(scenario, lock, &nothing, round);
        }
        let text = matrix.terminal();
        assert!(text.contains("U!* 2/3"), "{text}");
        assert!(text.contains("oversell on redis-setnx-expire: T where U! is expected"), "{text}");
        assert_eq!(text.matches("tenure lab replay runs/2.jsonl").count(), 1, "{text}");
        assert_eq!(matrix.outcome(), Some(Outcome::Differs));
        assert_eq!((matrix.size(), matrix.count(Outcome::AsExpected)), (1, 2));
    }
}
