//! The table of verdicts, from real runs.

use serde::Serialize;

use crate::picture::{self, headline};
use crate::run::{Played, Run};
use crate::scenarios::Scenario;
use crate::schemes::Lock;
use crate::verdict::Outcome;

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
    /// What was measured in each run: a symbol, or why there is none.
    pub measured: Vec<String>,
    /// How the worst run came out; none while there was no run.
    pub outcome: Option<Outcome>,
    /// What the last run has to say.
    pub headline: String,
    /// The picture of the last run; left out of what programs read.
    #[serde(skip)]
    pub figure: Option<String>,
}

impl Matrix {
    /// An empty table.
    pub fn new(scenarios: &[&'static Scenario], locks: &[&'static Lock]) -> Matrix {
        let cell = |scenario: &&'static Scenario, lock: &&'static Lock| Cell {
            scenario: scenario.name,
            lock: lock.name,
            expected: scenario.expected(lock).ok(),
            measured: Vec::new(),
            outcome: None,
            headline: String::new(),
            figure: None,
        };
        let cells = scenarios.iter().flat_map(|s| locks.iter().map(move |l| cell(s, l)));
        Matrix {
            cells: cells.collect(),
            scenarios: scenarios.iter().map(|scenario| scenario.name).collect(),
            locks: locks.iter().map(|lock| lock.name).collect(),
        }
    }

    /// Takes a run down and says in words how it was.
    pub fn take(
        &mut self,
        scenario: &Scenario,
        lock: &Lock,
        played: anyhow::Result<Played>,
    ) -> String {
        let fits = |cell: &&mut Cell| cell.scenario == scenario.name && cell.lock == lock.name;
        let Some(cell) = self.cells.iter_mut().find(fits) else { return String::new() };
        let (symbol, outcome, text) = match played {
            Ok(Played::Run(run)) => {
                let symbol = run.judgement.measured.symbol().to_owned();
                let text = format!("{symbol}  {}", headline(&run.report));
                let Run { history, report, judgement } = *run;
                cell.figure = Some(picture::figure(&history, &report, &judgement));
                let run = judgement;
                (symbol, run.outcome, text)
            }
            Ok(Played::Inapplicable(why)) => {
                cell.headline = why.to_owned();
                return format!("–  {why}");
            }
            Ok(Played::Skipped(why)) => ("skipped".to_owned(), Outcome::Skipped, why),
            // The lab failed, not the lock: nothing is known.
            Err(error) => ("?".to_owned(), Outcome::Inconclusive, format!("{error:#}")),
        };
        cell.measured.push(symbol);
        cell.headline = text.clone();
        cell.outcome = cell.outcome.max(Some(outcome));
        format!("{text} [{}]", outcome.text())
    }

    /// How the worst cell that was measured came out; none if nothing was measured.
    pub fn outcome(&self) -> Option<Outcome> {
        let measured = self.cells.iter().filter_map(|cell| cell.outcome);
        let measured: Vec<_> = measured.filter(|outcome| *outcome != Outcome::Skipped).collect();
        // A cell that differs says more than one that shows nothing.
        let differs = measured.contains(&Outcome::Differs).then_some(Outcome::Differs);
        differs.or(measured.into_iter().max())
    }

    /// The table as a page, with the picture of every cell's last run.
    pub fn html(&self, about: &str) -> String {
        let find = |names: &[&str], name: &str| names.iter().position(|known| *known == name);
        let cells = self.cells.iter().map(|cell| picture::Cell {
            row: find(&self.scenarios, cell.scenario).unwrap_or_default(),
            column: find(&self.locks, cell.lock).unwrap_or_default(),
            symbol: cell.measured.last().cloned().unwrap_or_else(|| "–".to_owned()),
            expected: cell.expected.unwrap_or("–").to_owned(),
            outcome: cell.outcome,
            headline: cell.headline.clone(),
            runs: cell.measured.len(),
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

    /// The table for a terminal: locks down, scenarios across by number.
    pub fn terminal(&self) -> String {
        let widest = self.scenarios.iter().map(|name| name.len()).max().unwrap_or(0).max(8);
        let mut text = String::from("\n");
        for (number, lock) in self.locks.iter().enumerate() {
            text += &format!("{:>2} {lock}\n", number + 1);
        }
        text += &format!("\n{:widest$}", "");
        for number in 1..=self.locks.len() {
            text += &format!(" {number:>4}");
        }
        text.push('\n');
        for scenario in &self.scenarios {
            text += &format!("{scenario:widest$}");
            for lock in &self.locks {
                let cell = self.cells.iter().find(|c| c.scenario == *scenario && c.lock == *lock);
                text += &format!(" {:>4}", cell.map_or(String::new(), Cell::short));
            }
            text.push('\n');
        }
        text + "\n* differs from what is expected, ? inconclusive, skip: not to be had here\n"
    }
}

impl Cell {
    /// The last symbol, with a mark unless it is expected.
    fn short(&self) -> String {
        let last = self.measured.last().map_or("–", String::as_str);
        match self.outcome {
            None => "–".to_owned(),
            Some(Outcome::AsExpected) => last.to_owned(),
            Some(Outcome::Differs) => format!("{last}*"),
            Some(Outcome::Inconclusive) => format!("{}?", last.trim_end_matches('?')),
            Some(Outcome::Skipped) => "skip".to_owned(),
        }
    }
}
