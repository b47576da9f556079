//! Readers and permits on Redis: what a handoff to many of them costs, and how long a writer waits
//! among readers that never stop coming.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;
use tenure::{Client, Guard, Lock, Permit};
use tenure_servers::{Node, Topology};
use tokio::task::JoinSet;

use super::servers;
use crate::figures::{Row, Table};
use crate::peer::{Process, REDISSON, own};
use crate::warm::{Plan, SCRIPTS, Series, Server};

/// How many contenders share the key with one writer.
const READERS: usize = 20;
/// How long one round lasts, and each of them holds the lock.
const ROUND_MS: u64 = 2000;
const HOLD_MS: u64 = 1;

/// What waits behind a writer.
#[derive(Clone, Copy)]
enum Waiters {
    Writers(usize),
    Readers(usize),
    /// One permit each, of a semaphore that has so many.
    Permits {
        waiters: usize,
        limit: u32,
    },
}

/// What waiters are granted, held until all of them have it or, of writers, released at once.
enum Held {
    Guard(Guard),
    Permit(Permit),
}

pub(crate) fn compare(plan: Plan) -> Result<Vec<Table>> {
    Ok(vec![handoffs(plan)?, writer(plan)?])
}

/// From the release that lets the waiters in to the last release of them.
fn handoffs(plan: Plan) -> Result<Table> {
    let cluster = servers(Topology::Redis)?;
    let server = Server::redis(cluster.node())?;
    let runtime = crate::runtime()?;
    let client = runtime.block_on(tenure::connect(&cluster.url()))?;
    let mut rows = Vec::new();
    let counts = [1, 10, 100];
    let groups = counts
        .map(Waiters::Writers)
        .into_iter()
        .chain(counts.map(Waiters::Readers))
        .chain([Waiters::Permits { waiters: 10, limit: 5 }]);
    for waiters in groups {
        let mut series = Series::default();
        // The first turn prepares scripts and subscriptions, and does not count.
        for turn in 0..=plan.turns().min(15) {
            let mut ignored = Series::default();
            let series = if turn == 0 { &mut ignored } else { &mut series };
            runtime.block_on(waiters.turn(&client, &server, series))?;
        }
        rows.push(series.into_row(&waiters.name()));
    }
    let about = "Redis: one release lets waiters in, each of which releases too".into();
    Ok(Table { scenario: "redis-modes-handoff".into(), about, rows })
}

impl Waiters {
    fn name(self) -> String {
        match self {
            Waiters::Writers(1) => "1 writer".into(),
            Waiters::Readers(1) => "1 reader".into(),
            Waiters::Writers(count) => format!("{count} writers"),
            Waiters::Readers(count) => format!("{count} readers"),
            Waiters::Permits { waiters, limit } => format!("{waiters} for {limit} permits"),
        }
    }

    fn count(self) -> usize {
        match self {
            Waiters::Writers(count) | Waiters::Readers(count) => count,
            Waiters::Permits { waiters, .. } => waiters,
        }
    }

    async fn turn(self, client: &Client, server: &Server, series: &mut Series) -> Result<()> {
        let name = format!("modes/{}", self.name());
        let first = match self {
            Waiters::Permits { limit, .. } => {
                let all = client.semaphore(&*name, limit).permits(limit);
                Held::Permit(all.acquire().await?)
            }
            _ => Held::Guard(client.lock(&*name).acquire().await?),
        };
        let mut waiting = JoinSet::new();
        for _ in 0..self.count() {
            let client = client.clone();
            let name = name.clone();
            waiting.spawn(async move { self.wait(&client, &name).await });
        }
        until_waiters(&client.lock(&*name), self.count()).await?;
        let before = server.commands(SCRIPTS)?.context("Redis counts commands")?;
        let start = Instant::now();
        first.release().await?;
        while let Some(done) = waiting.join_next().await {
            done??.release().await?;
        }
        let elapsed = start.elapsed();
        let after = server.commands(SCRIPTS)?.context("Redis counts commands")?;
        let count = self.count() as f64;
        series.add("us_per_op", elapsed.as_secs_f64() * 1e6 / count);
        series.add("requests", (after.requests - before.requests) / count);
        series.add("script_us", (after.script_us - before.script_us) / count);
        Ok(())
    }

    async fn wait(self, client: &Client, name: &str) -> tenure::Result<Held> {
        Ok(match self {
            Waiters::Writers(_) => Held::Guard(client.lock(name).acquire().await?),
            Waiters::Readers(_) => Held::Guard(client.lock(name).shared().acquire().await?),
            Waiters::Permits { limit, .. } => {
                Held::Permit(client.semaphore(name, limit).acquire().await?)
            }
        })
    }
}

impl Held {
    async fn release(self) -> tenure::Result<()> {
        match self {
            Held::Guard(guard) => guard.release().await,
            Held::Permit(permit) => permit.release().await,
        }
    }
}

async fn until_waiters(lock: &Lock, count: usize) -> Result<()> {
    while lock.status().await?.is_none_or(|held| held.waiters.len() < count) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// A writer among readers, beside Redisson.
fn writer(plan: Plan) -> Result<Table> {
    let cluster = servers(Topology::Redis)?;
    let node = cluster.node();
    let mut subjects = vec![("tenure", own(node, "tenure-readers"))];
    if plan.peers {
        let reason = || "could not get Redisson".to_owned();
        let peer = REDISSON.start(node, "readers").with_context(reason);
        subjects.push(("Redisson RReadWriteLock", peer));
    }
    let mut rows = Vec::new();
    for (name, process) in subjects {
        let row = process.and_then(|process| writers_waits(name, process, plan, node));
        rows.push(row.unwrap_or_else(|reason| Row::ignored(name, format!("{reason:#}"))));
    }
    let about = format!(
        "Redis, one key: a writer among {READERS} readers, each holds it for {HOLD_MS} ms, again \
         and again for {ROUND_MS} ms"
    );
    Ok(Table { scenario: "redis-modes-writer".into(), about, rows })
}

fn writers_waits(name: &str, mut process: Process, plan: Plan, node: &Node) -> Result<Row> {
    let server = Server::redis(node)?;
    let mut series = Series::default();
    let mut longest: f64 = 0.0;
    for round in 0..=plan.turns().min(5) {
        // The first round is short, opens connections, and does not count.
        let millis = if round == 0 { 300 } else { ROUND_MS };
        let before = server.usage()?;
        process.send(&format!("hot {millis} {} {HOLD_MS}", READERS + 1))?;
        let answer = process.answer()?;
        if round == 0 {
            continue;
        }
        let figure = |name: &str| answer[name].as_f64().unwrap_or(f64::NAN);
        let grants: Vec<f64> =
            answer["grants"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        let (writer, readers) = grants.split_first().context("no grants")?;
        series.add("writes", *writer);
        series.add("reads", readers.iter().sum());
        series.add("write_p50_us", figure("first_p50_us"));
        series.add("server_cpu_us", server.usage()?.since(&before).cpu_us / figure("total"));
        longest = longest.max(figure("first_max_us"));
    }
    Ok(series.into_row(name).with("longest_wait_ms", longest / 1e3))
}
