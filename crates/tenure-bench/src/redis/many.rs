//! Many locks held by one client: what they and their renewals cost, and how long it takes to
//! release all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt};
use tenure::{Client, Config, Event, Guard};
use tenure_servers::wire::redis::execute;
use tenure_servers::{Node, Topology};

use super::{TTL, servers};
use crate::figures::{Row, Table};
use crate::usage::{Usage, resident, this_thread};
use crate::warm::Plan;

/// In this order: memory that the allocator keeps would hide what a smaller number needs.
const COUNTS: [usize; 3] = [1000, 10_000, 100_000];
const MILLION: usize = 1_000_000;
/// The longest time for the release of all locks.
const RELEASE_LIMIT: Duration = Duration::from_secs(300);
/// How often the leases are looked at.
const PAUSE: Duration = Duration::from_secs(2);

/// From a thousand to a hundred thousand locks.
pub(crate) fn measure_held(_plan: Plan) -> Result<Vec<Table>> {
    let rows = COUNTS.iter().map(|count| held(*count)).collect::<Result<Vec<_>>>()?;
    let about = "Redis: locks held by one client, and their renewals, for one lease".into();
    Ok(vec![Table { scenario: "redis-held".into(), about, rows }])
}

/// A million locks.
pub(crate) fn measure_million(_plan: Plan) -> Result<Vec<Table>> {
    let about = "Redis: a million locks held by one client, and their renewals".into();
    Ok(vec![Table { scenario: "redis-held-1m".into(), about, rows: vec![held(MILLION)?] }])
}

fn held(locks: usize) -> Result<Row> {
    let cluster = servers(Topology::Redis)?;
    let node = cluster.node();
    let runtime = crate::runtime()?;
    let failed = Arc::new(AtomicU64::new(0));
    let config: Config = cluster.url().parse()?;
    let counted = failed.clone();
    let config = config.observe(move |event| {
        if let Event::RenewalFailed { .. } = event {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let client = runtime.block_on(config.connect())?;
    // The first lock makes connections and buffers; only the cost of further ones is measured.
    runtime.block_on(async { client.lock("first").acquire().await?.release().await })?;
    let (memory, server_memory) = (resident()?, number(node, "memory", "used_memory:")?);
    let (before, start) = (Spent::now(node)?, Instant::now());
    let guards = runtime.block_on(acquire(&client, locks))?;
    let (took, spent) = (start.elapsed(), Spent::now(node)?.since(&before));
    let count = locks as f64;
    let mut row = Row::new(format!("tenure, {locks} locks held"));
    row.set("us_per_op", took.as_secs_f64() * 1e6 / count);
    row.set("client_cpu_us", spent.cpu_us / count);
    row.set("server_cpu_us", spent.server_cpu_us / count);
    row.set("client_bytes", (resident()? - memory) / count);
    row.set("server_bytes", (number(node, "memory", "used_memory:")? - server_memory) / count);

    // Each lock is renewed every third of its lease.
    let (before, start) = (Spent::now(node)?, Instant::now());
    let (mut margin, mut lost, mut checks) = (TTL, 0, 0.0);
    while start.elapsed() < TTL {
        std::thread::sleep(PAUSE);
        let before = this_thread()?;
        let left: Vec<_> = guards.iter().map(|guard| guard.check().ok()).collect();
        lost = left.iter().filter(|left| left.is_none()).count();
        margin = margin.min(left.into_iter().flatten().min().unwrap_or_default());
        checks += this_thread()? - before;
    }
    let (window, spent) = (start.elapsed(), Spent::now(node)?.since(&before));
    let client_cpu_us = spent.cpu_us - checks;
    let share = |cpu_us: f64| cpu_us / window.as_secs_f64() / 1e4;
    row.set("renewals", spent.renewals);
    row.set("renewals_per_command", spent.renewals / spent.commands);
    row.set("client_us_per_renewal", client_cpu_us / spent.renewals);
    row.set("server_us_per_renewal", spent.server_cpu_us / spent.renewals);
    row.set("client_core_percent", share(client_cpu_us));
    row.set("server_core_percent", share(spent.server_cpu_us));
    row.set("repeated", failed.load(Ordering::Relaxed) as f64);
    row.set("lost", lost as f64);
    row.set("least_margin_s", margin.as_secs_f64());
    let start = Instant::now();
    drop(guards);
    row.set("drop_s", start.elapsed().as_secs_f64());
    // A flush gives up after a while; the releaser does not.
    while let Err(error) = runtime.block_on(client.flush()) {
        ensure!(start.elapsed() < RELEASE_LIMIT, "{error}");
    }
    row.set("release_s", start.elapsed().as_secs_f64());
    Ok(row)
}

async fn acquire(client: &Client, locks: usize) -> tenure::Result<Vec<Guard>> {
    let acquires = (0..locks).map(|number| client.lock(format!("k{number}")).ttl(TTL).acquire());
    futures_util::stream::iter(acquires).buffer_unordered(256).try_collect().await
}

/// What was spent so far.
struct Spent {
    renewals: f64,
    commands: f64,
    cpu_us: f64,
    server_cpu_us: f64,
}

impl Spent {
    fn now(node: &Node) -> Result<Spent> {
        let calls = |name: &str| number(node, "commandstats", &format!("cmdstat_{name}:calls="));
        let server = Usage::of_process(node.pid().context("the server has ended")?)?;
        Ok(Spent {
            // The script calls this once per lock.
            renewals: calls("hexists").unwrap_or(0.0),
            commands: calls("evalsha")?,
            cpu_us: Usage::own()?.cpu_us,
            server_cpu_us: server.cpu_us,
        })
    }

    fn since(&self, before: &Spent) -> Spent {
        Spent {
            renewals: self.renewals - before.renewals,
            commands: self.commands - before.commands,
            cpu_us: self.cpu_us - before.cpu_us,
            server_cpu_us: self.server_cpu_us - before.server_cpu_us,
        }
    }
}

/// The number after this text in a section of the server's `INFO`.
fn number(node: &Node, section: &str, name: &str) -> Result<f64> {
    let response = execute(node.port(), &["INFO", section])?;
    let text = response.text().unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let line = line.with_context(|| format!("the server does not report {name}"))?;
    Ok(line.split(',').next().unwrap_or_default().trim().parse()?)
}
