//! What a scenario prints: a table for readers, or a line of JSON for each subject.

use std::fmt;

use serde_json::{Map, Value, json};

/// What every line of JSON has, measured or not.
const ALWAYS: [&str; 4] = ["us_per_op", "ratio", "client_cpu_us", "server_cpu_us"];

/// The subjects of one scenario, and their figures.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) scenario: String,
    pub(crate) about: String,
    pub(crate) rows: Vec<Row>,
}

/// A subject and its figures.
#[derive(Default)]
pub(crate) struct Row {
    pub(crate) subject: String,
    figures: Vec<(&'static str, f64)>,
    /// The unit of a figure that stands alone.
    unit: Option<&'static str>,
    /// Why the subject was not measured.
    ignored: Option<String>,
}

impl Row {
    pub(crate) fn new(subject: impl Into<String>) -> Row {
        Row { subject: subject.into(), ..Row::default() }
    }

    /// A subject that cannot be had here.
    pub(crate) fn ignored(subject: impl Into<String>, reason: impl Into<String>) -> Row {
        Row { ignored: Some(reason.into()), ..Row::new(subject) }
    }

    /// A figure that stands alone.
    pub(crate) fn fact(name: impl Into<String>, value: f64, unit: &'static str) -> Row {
        Row { unit: Some(unit), ..Row::new(name).with("value", value) }
    }

    pub(crate) fn with(mut self, name: &'static str, value: f64) -> Row {
        self.set(name, value);
        self
    }

    /// Sets a figure; one that is not a number was not measured, and is left out.
    pub(crate) fn set(&mut self, name: &'static str, value: f64) {
        if value.is_finite() {
            self.figures.push((name, value));
        }
    }

    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    pub(crate) fn reason(&self) -> Option<&str> {
        self.ignored.as_deref()
    }
}

impl Table {
    /// Adds the ratio of each row's time to that of the first, and its inverse, the speed.
    pub(crate) fn add_ratios(&mut self) {
        let Some(bare) = self.rows.first().and_then(|row| row.figure("us_per_op")) else { return };
        for row in &mut self.rows {
            if let Some(time) = row.figure("us_per_op") {
                let place = row.figures.len().min(1);
                row.figures.insert(place, ("ratio", time / bare));
                row.figures.insert(place + 1, ("speed", bare / time));
            }
        }
    }

    /// One line for each subject.
    pub(crate) fn to_json(&self) -> String {
        let lines = self.rows.iter().map(|row| {
            let mut line = Map::new();
            line.insert("scenario".into(), json!(self.scenario));
            line.insert("subject".into(), json!(row.subject));
            for name in ALWAYS {
                line.insert(name.into(), Value::Null);
            }
            for (name, value) in &row.figures {
                line.insert((*name).into(), json!(rounded(*value)));
            }
            if let Some(unit) = row.unit {
                line.insert("unit".into(), json!(unit));
            }
            if let Some(reason) = &row.ignored {
                line.insert("ignored".into(), json!(reason));
            }
            Value::Object(line).to_string() + "\n"
        });
        lines.collect()
    }

    fn columns(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        let figures = self.rows.iter().filter(|row| row.unit.is_none()).flat_map(|r| &r.figures);
        for (name, _) in figures {
            if !names.contains(name) {
                names.push(*name);
            }
        }
        names
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.columns();
        let width = self.rows.iter().map(|row| row.subject.chars().count()).max().unwrap_or(0);
        if !columns.is_empty() {
            write!(f, "{:width$}", "")?;
            for column in &columns {
                write!(f, "  {:>1$}", column, column.len().max(8))?;
            }
            writeln!(f)?;
        }
        for row in &self.rows {
            write!(f, "{:width$}", row.subject)?;
            if let Some(reason) = &row.ignored {
                writeln!(f, "  ignored: {reason}")?;
                continue;
            }
            if let (Some(unit), Some(value)) = (row.unit, row.figure("value")) {
                writeln!(f, "  {value:12.2} {unit}")?;
                continue;
            }
            for column in &columns {
                let width = column.len().max(8);
                match row.figure(column) {
                    Some(value) if *column == "ratio" || *column == "speed" => {
                        write!(f, "  {value:>width$.2}")?;
                    }
                    Some(value) => write!(f, "  {value:>width$.1}")?,
                    None => write!(f, "  {:>width$}", "-")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// With as many digits as anything here is measured with.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let rows = vec![
            Row::new("bare").with("us_per_op", 100.0).with("client_cpu_us", 30.0),
            Row::new("tenure").with("us_per_op", 125.0).with("allocations", f64::NAN),
            Row::ignored("peer", "there is no go"),
        ];
        let mut table = Table { scenario: "x".into(), about: "y".into(), rows };
        table.add_ratios();
        table
    }

    #[test]
    fn every_line_has_every_field_and_null_for_what_was_not_measured() {
        let text = table().to_json();
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0]["ratio"], 1.0);
        assert_eq!(lines[1]["ratio"], 1.25);
        assert_eq!(lines[1]["speed"], 0.8);
        assert_eq!(lines[1]["client_cpu_us"], Value::Null);
        assert_eq!(lines[2]["us_per_op"], Value::Null);
        assert_eq!(lines[2]["ignored"], "there is no go");
    }

    #[test]
    fn the_table_says_why_a_subject_is_ignored() {
        let text = table().to_string();
        assert!(text.contains("ignored: there is no go"), "{text}");
        assert!(text.contains("1.25"), "{text}");
    }
}
