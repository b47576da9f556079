//! Subjects that take turns, and the table of their times.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

/// One execution of a subject, which is measured.
pub(crate) type Turn<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

/// How long each execution of each subject took, or other figures.
#[derive(Default)]
pub(crate) struct Comparison {
    rows: Vec<Row>,
    facts: Vec<Fact>,
}

/// A single figure.
pub(crate) struct Fact {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
}

struct Row {
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
            subjects.iter().map(|(name, _)| Row { name, times: Vec::new() }).collect();
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

    pub(crate) fn to_json(&self, scenario: &str) -> String {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "subject": row.name, "rounds": row.times.len(), "ratio": self.ratio(row),
                    "p50_us": row.micros(50), "p90_us": row.micros(90), "p99_us": row.micros(99),
                })
            })
            .collect();
        let fact =
            |fact: &Fact| json!({ "name": fact.name, "value": fact.value, "unit": fact.unit });
        let facts: Vec<_> = self.facts.iter().map(fact).collect();
        json!({ "scenario": scenario, "rows": rows, "facts": facts }).to_string()
    }

    /// The ratio of the medians to the first row.
    fn ratio(&self, row: &Row) -> f64 {
        row.micros(50) / self.rows[0].micros(50)
    }
}

impl Row {
    fn micros(&self, percent: usize) -> f64 {
        let last = self.times.len() - 1;
        self.times[last * percent / 100].as_secs_f64() * 1e6
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.facts.iter().map(|fact| fact.name.len()).max().unwrap_or(0);
        for Fact { name, value, unit } in &self.facts {
            writeln!(f, "{name:width$}  {value:12.2} {unit}")?;
        }
        if self.rows.is_empty() {
            return Ok(());
        }
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
        writeln!(
            f,
            "{:width$}  {:>10}  {:>10}  {:>10}  {:>7}",
            "", "p50 us", "p90 us", "p99 us", "ratio"
        )?;
        for row in &self.rows {
            let [p50, p90, p99] = [50, 90, 99].map(|percent| row.micros(percent));
            let name = row.name;
            let ratio = self.ratio(row);
            writeln!(f, "{name:width$}  {p50:10.1}  {p90:10.1}  {p99:10.1}  {ratio:6.2}x")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_calculated_from_the_medians() {
        let row = |name, micros| Row { name, times: vec![Duration::from_micros(micros); 10] };
        let rows = vec![row("one", 10), row("two", 25)];
        let comparison = Comparison { rows, ..Comparison::default() };
        assert_eq!(comparison.ratio(&comparison.rows[1]), 2.5);
        assert!(comparison.to_string().contains("2.50x"), "{comparison}");
    }
}
