//! What only a real Redis can show: faults, the layout at the server, foreign clients on the same
//! keys, the number of commands. Each case has a server of its own, to damage it.
//! `cargo test -p tenure-conformance --test redis -- redlock` runs some of them.

#![expect(clippy::unwrap_used, reason = "a case that panics fails")]

mod batches;
mod cluster;
mod earlier_version;
mod encrypted;
mod failover;
mod faults;
mod foreign_clients;
mod late;
mod layout;
mod lossy_proxy;
mod modes;
mod redisson;
mod redlock;
mod runtimes;
mod shedlock;
mod string_locks;
mod traffic;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tenure::backend::{Claim, Owner};
use tenure::{Attempt, Client, Guard, Key};
use tenure_conformance::trials;
use tenure_servers::wire::redis::{Value, execute as request};
use tenure_servers::{Cluster, Node};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// A lease so long that nothing in a case is due to its end.
pub(crate) const LONG: Duration = Duration::from_secs(30);

fn main() {
    let modules = [
        batches::CASES,
        cluster::CASES,
        earlier_version::CASES,
        encrypted::CASES,
        faults::CASES,
        late::CASES,
        modes::CASES,
        layout::CASES,
        failover::CASES,
        redisson::CASES,
        redlock::CASES,
        runtimes::CASES,
        shedlock::CASES,
        string_locks::CASES,
        foreign_clients::CASES,
        traffic::CASES,
    ];
    trials::main(4, &modules)
}

/// A client of the whole cluster.
pub(crate) async fn connect(cluster: &Cluster, options: &str) -> Result<Client> {
    Ok(tenure::connect(&cluster.url_with(options)).await?)
}

/// A command that must succeed.
pub(crate) fn execute(node: &Node, words: &[&str]) -> Result<Value> {
    match request(node.port(), words).with_context(|| words.join(" "))? {
        Value::Error(error) => bail!("{}: {error}", words.join(" ")),
        value => Ok(value),
    }
}

/// The number that a command returns.
pub(crate) fn number(node: &Node, words: &[&str]) -> Result<i64> {
    match execute(node, words)? {
        Value::Int(number) => Ok(number),
        other => bail!("{} returned {other:?}", words.join(" ")),
    }
}

/// The texts that a command returns.
pub(crate) fn texts(node: &Node, words: &[&str]) -> Result<Vec<String>> {
    match execute(node, words)? {
        Value::List(values) => {
            Ok(values.iter().map(|v| v.text().unwrap_or_default().to_owned()).collect())
        }
        Value::Text(text) => Ok(vec![text]),
        other => bail!("{} returned {other:?}", words.join(" ")),
    }
}

/// How many scripts the server has run.
pub(crate) fn scripts(node: &Node) -> Result<u64> {
    let text = texts(node, &["INFO", "commandstats"])?.concat();
    let line = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    let calls = line.and_then(|line| line.split(',').next()?.parse().ok());
    Ok(calls.unwrap_or(0))
}

/// Acquires a lock that must be free.
pub(crate) async fn acquire(client: &Client, key: &str, ttl: Duration) -> Result<Guard> {
    match client.lock(key).ttl(ttl).try_acquire().await? {
        Attempt::Granted(guard) => Ok(guard),
        Attempt::Busy(busy) => bail!("expected a free lock, but {busy}"),
    }
}

/// Waits for the lock in a task of its own.
pub(crate) fn wait_for(
    client: &Client,
    key: &str,
    ttl: Duration,
) -> tokio::task::JoinHandle<tenure::Result<Guard>> {
    tokio::spawn(client.lock(key).ttl(ttl).acquire())
}

/// Checks that handoffs came by a message, and not with the next poll, which is 3.3 s away: judged
/// by the quickest, since a busy machine makes any one of them slow.
pub(crate) fn were_quick(times: &[Duration]) -> Result<()> {
    ensure!(times.iter().any(|time| *time < SECOND), "handoffs took {times:?}");
    Ok(())
}

/// A claim as a client would make it.
pub(crate) fn claim(key: &str) -> Result<Claim> {
    Ok(Claim::new(Key::new(key)?, Owner::random(), Duration::from_secs(20)))
}
