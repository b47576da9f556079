//! 100,000 locks held by one client: what their renewals cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::{StreamExt, TryStreamExt};
use tenure::{Config, Event, Guard};
use tenure_servers::wire::redis::execute;
use tenure_servers::{Node, Topology};

use super::servers;
use crate::compare::{Comparison, Fact};
use crate::usage::{Usage, resident};

const LOCKS: usize = 100_000;
const TTL: Duration = Duration::from_secs(30);

pub(crate) fn measure_held(_rounds: usize) -> Result<Comparison> {
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
    let memory = resident()?;
    let server_memory = number(node, "memory", "used_memory:")?;
    let start = Instant::now();
    let guards: Vec<Guard> = runtime.block_on(async {
        let acquires =
            (0..LOCKS).map(|number| client.lock(format!("k{number}")).ttl(TTL).acquire());
        futures_util::stream::iter(acquires).buffer_unordered(256).try_collect().await
    })?;
    let took = start.elapsed();
    let per_lock = |now: f64, before: f64| (now - before) / LOCKS as f64;
    let memory = per_lock(resident()?, memory);
    let server_memory = per_lock(number(node, "memory", "used_memory:")?, server_memory);

    // Each lock is renewed every third of its lease.
    let before = Spent::now(node)?;
    std::thread::sleep(TTL);
    let spent = Spent::now(node)?.since(&before);
    guards.iter().try_for_each(|guard| guard.check().map(drop)).context("a lock was lost")?;
    drop(runtime.block_on(client.shutdown(Duration::ZERO)));
    let facts = [
        ("locks held by one client", LOCKS as f64, ""),
        ("time to acquire them", took.as_secs_f64(), "s"),
        ("renewals in one lease", spent.renewals, ""),
        ("commands for them", spent.commands, ""),
        ("renewals that had to be repeated", failed.load(Ordering::Relaxed) as f64, ""),
        ("commands per renewal", spent.commands / spent.renewals, ""),
        ("CPU of the client per renewal", spent.cpu * 1e6 / spent.renewals, "us"),
        ("CPU of the server per renewal", spent.server_cpu * 1e6 / spent.renewals, "us"),
        ("memory of the client per lock", memory, "bytes"),
        ("memory of the server per lock", server_memory, "bytes"),
    ];
    let facts = facts.map(|(name, value, unit)| Fact { name: name.to_owned(), value, unit });
    Ok(Comparison::of_facts(facts.into()))
}

/// The cost of renewals so far.
struct Spent {
    renewals: f64,
    commands: f64,
    cpu: f64,
    server_cpu: f64,
}

impl Spent {
    fn now(node: &Node) -> Result<Spent> {
        let calls = |name: &str| number(node, "commandstats", &format!("cmdstat_{name}:calls="));
        let cpu = |of: &str| number(node, "cpu", &format!("used_cpu_{of}_main_thread:"));
        Ok(Spent {
            // The script calls this once per lock.
            renewals: calls("hexists").unwrap_or(0.0),
            commands: calls("evalsha")?,
            cpu: Usage::own()?.cpu_us / 1e6,
            server_cpu: cpu("user")? + cpu("sys")?,
        })
    }

    fn since(&self, before: &Spent) -> Spent {
        Spent {
            renewals: self.renewals - before.renewals,
            commands: self.commands - before.commands,
            cpu: self.cpu - before.cpu,
            server_cpu: self.server_cpu - before.server_cpu,
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
