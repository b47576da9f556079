//! A warm loop: each task acquires and releases again and again, and no task is spawned for a
//! cycle. The subjects take turns, many short ones, so that a noisy machine disturbs all of them
//! alike; each figure is a median over the turns.

mod server;
mod tasks;

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::Runtime;

pub(crate) use self::server::{SCRIPTS, SET_AND_SCRIPTS, Server};
pub(crate) use self::tasks::{Cycle, Dropped, Own, Released};
use crate::allocations;
use crate::figures::{Row, Table};
use crate::usage::Usage;

/// How many tasks there are on servers that replicate.
pub(crate) const FEW: usize = 32;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    /// Whether locks in other languages are measured too.
    pub(crate) peers: bool,
}

impl Plan {
    pub(crate) fn turns(self) -> usize {
        self.rounds.div_ceil(10)
    }
}

/// What is measured: a client that acquires and releases.
pub(crate) trait Subject {
    /// Acquires and releases so often in total, in so many tasks, each on a key of its own.
    fn turn(&mut self, cycles: usize, tasks: usize) -> Result<Timing>;

    /// The process of the client; `None` if it is this one.
    fn pid(&self) -> Option<u32> {
        None
    }

    /// Whether it is a program of others, or in another language.
    fn is_peer(&self) -> bool {
        self.pid().is_some() || !self.lasts()
    }

    /// How many cycles it needs before it is as fast as it gets.
    fn warm_up(&self) -> usize {
        400
    }

    /// Whether its processes last from turn to turn, so that their use of the CPU can be read.
    fn lasts(&self) -> bool {
        true
    }
}

/// How long a turn took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timing {
    pub(crate) elapsed: Duration,
    /// Of single cycles, in µs.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// A subject by name, or why it cannot be had here.
pub(crate) struct Entry<'a> {
    pub(crate) name: String,
    pub(crate) subject: Result<Box<dyn Subject + 'a>>,
    /// The commands that its client sends to a Redis; others are called by scripts.
    pub(crate) requests: &'static [&'static str],
}

impl<'a> Entry<'a> {
    pub(crate) fn new(name: impl Into<String>, subject: impl Subject + 'a) -> Entry<'a> {
        Entry { name: name.into(), subject: Ok(Box::new(subject)), requests: SCRIPTS }
    }

    /// One whose subject is still to come.
    pub(crate) fn missing(name: impl Into<String>) -> Entry<'a> {
        let subject = Err(anyhow::anyhow!("it was not started"));
        Entry { name: name.into(), subject, requests: SCRIPTS }
    }

    pub(crate) fn requests(mut self, requests: &'static [&'static str]) -> Entry<'a> {
        self.requests = requests;
        self
    }
}

/// Figures of one subject, one of each for every turn.
#[derive(Default)]
pub(crate) struct Series(Vec<(&'static str, Vec<f64>)>);

impl Series {
    pub(crate) fn add(&mut self, name: &'static str, value: f64) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => values.push(value),
            None => self.0.push((name, vec![value])),
        }
    }

    pub(crate) fn into_row(self, subject: &str) -> Row {
        let mut row = Row::new(subject);
        for (name, values) in self.0 {
            row.set(name, median(values));
        }
        row
    }
}

/// tenure itself: with a release that is awaited, and with a guard that is dropped.
pub(crate) fn of_tenure<'a>(
    runtime: &'a Runtime,
    url: &str,
    tasks: usize,
) -> Result<[Entry<'a>; 2]> {
    let client = runtime.block_on(tenure::connect(url))?;
    let other = runtime.block_on(tenure::connect(url))?;
    let released = |number| Released(client.lock(format!("k{number}")));
    let dropped = |number| Dropped::new(&other, format!("d{number}"));
    Ok([
        Entry::new("tenure", Own::new(runtime, tasks, released)),
        Entry::new("tenure, guard dropped", Own::new(runtime, tasks, dropped)),
    ])
}

/// Two tables: one task, and so many tasks on as many keys.
pub(crate) fn one_and_many(
    scenario: &str,
    place: &str,
    (plan, many): (Plan, usize),
    server: &Server,
    entries: &mut [Entry<'_>],
) -> Result<Vec<Table>> {
    let (turns, server) = (plan.turns(), Some(server));
    let about = format!("{place}, warm loop: acquire + release in one task");
    let one = measure(scenario, about, (turns, 200, 1), server, entries)?;
    let about = format!("{place}, warm loop: {many} tasks on {many} keys");
    let name = format!("{scenario}-{many}");
    Ok(vec![one, measure(name, about, (turns, many * 20, many), server, entries)?])
}

/// Lets the subjects take turns.
pub(crate) fn measure(
    scenario: impl Into<String>,
    about: impl Into<String>,
    (turns, cycles, tasks): (usize, usize, usize),
    server: Option<&Server>,
    entries: &mut [Entry<'_>],
) -> Result<Table> {
    let mut series: Vec<Series> = entries.iter().map(|_| Series::default()).collect();
    // The first turn warms up, and does not count.
    for turn in 0..=turns {
        for (entry, series) in entries.iter_mut().zip(&mut series) {
            let requests = entry.requests;
            let Ok(subject) = &mut entry.subject else { continue };
            let done = if turn == 0 {
                subject.turn(subject.warm_up().max(tasks), tasks).map(drop)
            } else {
                one_turn(subject.as_mut(), (cycles, tasks), requests, server, series)
            };
            // A peer that fails is left out; what fails in this process is a fault of the bench.
            match done {
                Err(reason) if subject.is_peer() => entry.subject = Err(reason),
                done => done.with_context(|| entry.name.clone())?,
            }
        }
    }
    let rows = entries.iter().zip(series).map(|(entry, series)| match &entry.subject {
        Ok(_) => series.into_row(&entry.name),
        Err(reason) => Row::ignored(&entry.name, format!("{reason:#}")),
    });
    let mut table = Table { scenario: scenario.into(), about: about.into(), rows: rows.collect() };
    for row in table.rows.iter_mut().filter(|row| row.reason().is_none()) {
        row.set("tasks", tasks as f64);
    }
    table.add_ratios();
    Ok(table)
}

fn one_turn(
    subject: &mut dyn Subject,
    (cycles, tasks): (usize, usize),
    requests: &[&str],
    server: Option<&Server>,
    series: &mut Series,
) -> Result<()> {
    let pid = subject.pid();
    let client = || pid.map_or_else(Usage::own, Usage::of_process);
    let commands = server.map(|server| server.commands(requests)).transpose()?.flatten();
    let server_before = server.map(Server::usage).transpose()?;
    let (before, allocated) = (client()?, allocations::count());
    let timing = subject.turn(cycles, tasks)?;
    let (allocated, used) = (allocations::count() - allocated, client()?.since(&before));
    // Every task does the same number of cycles.
    let done = (cycles.div_ceil(tasks) * tasks) as f64;
    series.add("us_per_op", timing.elapsed.as_secs_f64() * 1e6 / done);
    series.add("p50_us", timing.p50_us);
    series.add("p99_us", timing.p99_us);
    if subject.lasts() {
        series.add("client_cpu_us", used.cpu_us / done);
    }
    if let (Some(server), Some(before), true) = (server, server_before, subject.lasts()) {
        let used = server.usage()?.since(&before);
        series.add("server_cpu_us", used.cpu_us / done);
        series.add("server_switches", used.switches / done);
    }
    if subject.lasts() {
        series.add("client_switches", used.switches / done);
    }
    if pid.is_none() && subject.lasts() {
        series.add("allocations", allocated as f64 / done);
    }
    if let (Some(server), Some(before)) = (server, commands)
        && let Some(now) = server.commands(requests)?
    {
        series.add("script_us", (now.script_us - before.script_us) / done);
        series.add("requests", (now.requests - before.requests) / done);
        series.add("redis_calls", (now.calls - before.calls) / done);
    }
    Ok(())
}

/// The middle value, or the mean of the two in the middle; "not a number" of none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle =
        &values[values.len().saturating_sub(1) / 2..values.len() / 2 + 1.min(values.len())];
    middle.iter().sum::<f64>() / middle.len() as f64
}

/// The value below which so many percent lie, of sorted ones.
pub(crate) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * percent / 100).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::Client;
    use tenure::backends::Memory;

    #[test]
    fn a_few_cycles_of_the_memory_store_make_lines_of_json() {
        let runtime = crate::workers().unwrap();
        let client = Client::new(Memory::new());
        let other = client.clone();
        let mut entries = vec![
            Entry::new("released", Own::new(&runtime, 2, |n| Released(client.lock(key(n))))),
            Entry::new("dropped", Own::new(&runtime, 2, |n| Dropped::new(&other, key(n)))),
            Entry { subject: Err(anyhow::anyhow!("no tool")), ..Entry::missing("peer") },
        ];
        let table = measure("x", "y", (3, 4, 2), None, &mut entries).unwrap();
        let lines = table.to_json();
        let lines: Vec<serde_json::Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["subject"], "released");
        assert_eq!(lines[0]["ratio"], 1.0);
        for line in &lines[..2] {
            assert!(line["us_per_op"].as_f64().unwrap() > 0.0, "{line}");
            assert!(line["allocations"].as_f64().unwrap() > 0.0, "{line}");
        }
        assert_eq!(lines[2]["ignored"], "no tool");
    }

    #[test]
    fn a_missing_figure_is_no_number() {
        assert!(median(Vec::new()).is_nan());
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![3.0, 1.0]), 2.0);
        assert_eq!(percentile(&[1.0, 2.0, 3.0], 50), 2.0);
    }

    fn key(number: usize) -> String {
        format!("k{number}")
    }
}
