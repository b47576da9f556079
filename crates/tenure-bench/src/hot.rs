//! One hot key: processes or tasks that all want the same lock, for a while. Besides the rate, the
//! figures are about fairness: the fewest and the most grants of one contender, and the longest
//! wait. A lock that does not change hands is fast, and lets the others wait.

use anyhow::{Context, Result};
use serde_json::Value;
use tenure_servers::Node;

use crate::figures::{Row, Table};
use crate::peer::{Process, Recipe, own};
use crate::usage::Usage;
use crate::warm::{Plan, Series, Server, Subject};

/// How long one round lasts.
const ROUND_MS: u64 = 1500;

/// Who wants the lock, and how long each holds it.
#[derive(Clone, Copy)]
pub(crate) struct Contention {
    pub(crate) tasks: usize,
    pub(crate) hold_ms: u64,
}

/// A kind of lock, with its processes; or why it cannot be had here.
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) processes: Result<Vec<Process>>,
    pub(crate) requests: &'static [&'static str],
    /// How many tasks each process has, if not as many as the others.
    pub(crate) tasks: Option<usize>,
}

/// Lets the groups take turns.
pub(crate) fn measure(
    scenario: impl Into<String>,
    about: impl Into<String>,
    contention: Contention,
    rounds: usize,
    server: &Server,
    groups: &mut [Group],
) -> Result<Table> {
    let mut series: Vec<Series> = groups.iter().map(|_| Series::default()).collect();
    let mut longest = vec![0.0; groups.len()];
    // The first round is short, opens connections, and does not count.
    for round in 0..=rounds {
        for (number, group) in groups.iter_mut().enumerate() {
            let Ok(processes) = &mut group.processes else { continue };
            let tasks = group.tasks.unwrap_or(contention.tasks);
            let mut ignored = Series::default();
            let (millis, series) =
                if round == 0 { (300, &mut ignored) } else { (ROUND_MS, &mut series[number]) };
            let order = (millis, format!("hot {millis} {tasks} {}", contention.hold_ms));
            match one_round(processes, &order, group.requests, server, series) {
                Ok(wait) if round > 0 => longest[number] = f64::max(longest[number], wait),
                Ok(_) => {}
                // One that fails is left out.
                Err(reason) => group.processes = Err(reason),
            }
        }
    }
    let rows =
        groups.iter().zip(series).zip(longest).map(|((group, series), longest)| {
            match &group.processes {
                Ok(_) => series.into_row(&group.name).with("longest_wait_ms", longest / 1e3),
                Err(reason) => Row::ignored(&group.name, format!("{reason:#}")),
            }
        });
    let mut table = Table { scenario: scenario.into(), about: about.into(), rows: rows.collect() };
    table.add_ratios();
    Ok(table)
}

/// tenure beside locks of another client, on a server without a bare one: 16 tasks.
pub(crate) fn compare_tasks(
    place: &str,
    plan: Plan,
    node: &Node,
    peers: &[(&str, &Recipe)],
) -> Result<Table> {
    let group = |name: &str, process: Result<Process>| {
        let processes = process.map(|process| vec![process]);
        Group { name: name.to_owned(), processes, requests: &[], tasks: None }
    };
    let mut groups = vec![group("tenure", own(node, "tenure"))];
    for (name, recipe) in peers.iter().filter(|_| plan.peers) {
        let reason = || format!("could not get {name}");
        groups.push(group(name, recipe.start(node, "").with_context(reason)));
    }
    let about = format!("{place}, one hot key: 16 tasks, each holds it for 0 ms");
    let contention = Contention { tasks: 16, hold_ms: 0 };
    let rounds = plan.turns().min(3);
    let name = format!("{place}-hot");
    measure(name, about, contention, rounds, &Server::new(node)?, &mut groups)
}

/// One round of one group; the longest wait in µs.
fn one_round(
    processes: &mut [Process],
    (millis, command): &(u64, String),
    requests: &[&str],
    server: &Server,
    series: &mut Series,
) -> Result<f64> {
    let before = clients(processes)?;
    let commands = server.commands(requests)?;
    let server_before = server.usage()?;
    processes.iter_mut().try_for_each(|process| process.send(command))?;
    let answers: Vec<Value> = processes.iter_mut().map(Process::answer).collect::<Result<_>>()?;
    let server_cpu = server.usage()?.since(&server_before).cpu_us;
    let client_cpu = clients(processes)? - before;
    let figures = |name: &str| -> Vec<f64> {
        answers.iter().map(|answer| answer[name].as_f64().unwrap_or(f64::NAN)).collect()
    };
    let most = |name: &str| figures(name).into_iter().fold(0.0, f64::max);
    let grants: Vec<f64> = answers
        .iter()
        .flat_map(|answer| answer["grants"].as_array().into_iter().flatten())
        .filter_map(Value::as_f64)
        .collect();
    let counted: f64 = grants.iter().sum();
    series.add("us_per_op", *millis as f64 * 1e3 / counted);
    series.add("grants_per_s", counted * 1e3 / *millis as f64);
    // Costs are also of those who were served after the end.
    let total: f64 = figures("total").iter().sum();
    series.add("fewest_grants", grants.iter().copied().fold(f64::INFINITY, f64::min));
    series.add("most_grants", grants.iter().copied().fold(0.0, f64::max));
    series.add("p50_us", crate::warm::median(figures("p50_us")));
    series.add("p99_us", most("p99_us"));
    series.add("client_cpu_us", client_cpu / total);
    series.add("server_cpu_us", server_cpu / total);
    if let (Some(before), Some(now)) = (commands, server.commands(requests)?) {
        series.add("requests", (now.requests - before.requests) / total);
    }
    Ok(most("max_us"))
}

/// The CPU time of all clients.
fn clients(processes: &[Process]) -> Result<f64> {
    let pids = processes.iter().filter_map(Process::pid);
    pids.map(|pid| Ok(Usage::of_process(pid)?.cpu_us)).sum()
}
