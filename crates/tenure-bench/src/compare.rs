//! Subjects that take turns, and their times.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::figures::{Row, Table};

/// One execution of a subject, which is measured.
pub(crate) type Turn<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

/// How long each execution of each subject took, or other figures.
#[derive(Default)]
pub(crate) struct Comparison {
    rows: Vec<Times>,
    facts: Vec<Fact>,
}

/// A single figure.
pub(crate) struct Fact {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
}

/// The times of one subject.
struct Times {
    name: &'static str,
    times: Vec<Duration>,
}

impl Comparison {
    /// Executes every subject in turn, `rounds` times. A turn executes its subject `repeat` times,
    /// for subjects that are too short to be timed alone.
    pub(crate) fn run(
        rounds: usize,
        repeat: u32,
        mut subjects: Vec<(&'static str, Turn<'_>)>,
    ) -> Result<Comparison> {
        let mut rows: Vec<_> =
            subjects.iter().map(|(name, _)| Times { name, times: Vec::new() }).collect();
        // The first turns warm caches and open files; they do not count.
        for round in 0..rounds + rounds.div_ceil(10) {
            for ((_, turn), row) in subjects.iter_mut().zip(&mut rows) {
                let start = Instant::now();
                for _ in 0..repeat {
                    turn()?;
                }
                if round >= rounds.div_ceil(10) {
                    row.times.push(start.elapsed() / repeat);
                }
            }
        }
        rows.iter_mut().for_each(|row| row.times.sort_unstable());
        Ok(Comparison { rows, facts: Vec::new() })
    }

    pub(crate) fn of_facts(facts: Vec<Fact>) -> Comparison {
        Comparison { rows: Vec::new(), facts }
    }

    /// Divides all times by the number of operations in a turn.
    pub(crate) fn per_operation(mut self, operations: u32) -> Comparison {
        let times = self.rows.iter_mut().flat_map(|row| &mut row.times);
        times.for_each(|time| *time /= operations);
        self
    }

    /// The figures as a table of this scenario.
    pub(crate) fn into_table(self, scenario: &str, about: &str) -> Table {
        let mut rows: Vec<Row> = Vec::new();
        for subject in &self.rows {
            let [p50, p90, p99] = [50, 90, 99].map(|percent| subject.micros(percent));
            let row = Row::new(subject.name).with("us_per_op", p50);
            let row = row.with("p50_us", p50).with("p90_us", p90).with("p99_us", p99);
            rows.push(row.with("rounds", subject.times.len() as f64));
        }
        let mut table = Table { scenario: scenario.into(), about: about.into(), rows };
        table.add_ratios();
        let facts = self.facts.into_iter().map(|fact| Row::fact(fact.name, fact.value, fact.unit));
        table.rows.extend(facts);
        table
    }
}

impl Times {
    fn micros(&self, percent: usize) -> f64 {
        let last = self.times.len() - 1;
        self.times[last * percent / 100].as_secs_f64() * 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_calculated_from_the_medians() {
        let row = |name, micros| Times { name, times: vec![Duration::from_micros(micros); 10] };
        let rows = vec![row("one", 10), row("two", 25)];
        let table = Comparison { rows, ..Comparison::default() }.into_table("x", "y");
        assert_eq!(table.rows[1].figure("ratio"), Some(2.5));
        assert!(table.to_string().contains("2.50"), "{table}");
    }
}
