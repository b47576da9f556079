//! How many commands the server gets.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use tenure::Client;
use tenure_conformance::context::{soon, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::{Cluster, Node};

use crate::{LONG, SECOND, acquire, connect, execute, texts};

server_cases! {
    acquire_and_release_are_two_commands Redis;
    a_dropped_guard_is_released_before_the_next_request Redis;
    a_handoff_is_one_command_and_one_message_however_many_wait Redis;
    many_locks_are_renewed_in_few_commands Redis;
}

/// Commands that are not called by the scripts.
const OUTSIDE: [&str; 9] = [
    "eval",
    "evalsha",
    "subscribe",
    "unsubscribe",
    "hello",
    "ping",
    "info",
    "config|resetstat",
    "auth",
];

/// How often each command was called since the last reset, by any client, also from within scripts.
pub(crate) fn calls(node: &Node) -> Result<BTreeMap<String, u64>> {
    let text = texts(node, &["INFO", "commandstats"])?.concat();
    let line = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    Ok(text.lines().filter_map(line).collect())
}

pub(crate) fn of(calls: &BTreeMap<String, u64>, name: &str) -> u64 {
    calls.get(name).copied().unwrap_or(0)
}

/// Commands that a client sent: what scripts call does not count, nor what this test sends.
pub(crate) fn sent(calls: &BTreeMap<String, u64>) -> u64 {
    ["eval", "evalsha", "subscribe", "unsubscribe", "hello", "ping", "script|load"]
        .iter()
        .map(|name| of(calls, name))
        .sum()
}

async fn acquire_and_release_are_two_commands(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let node = cluster.node();
    // The first ones teach the server the scripts.
    client.lock("k").acquire().await?.release().await?;
    execute(node, &["CONFIG", "RESETSTAT"])?;
    for _ in 0..100 {
        client.lock("k").acquire().await?.release().await?;
    }
    let calls = calls(node)?;
    // On a slow machine a lock is held for longer than a moment, and the client subscribes.
    let listening = of(&calls, "subscribe") + of(&calls, "unsubscribe");
    ensure!(of(&calls, "evalsha") == 200 && sent(&calls) - listening == 200, "{calls:?}");
    // What the two scripts call: ten commands for a lock that is free.
    let within = calls.iter().filter(|(name, _)| !OUTSIDE.contains(&name.as_str()));
    let within: u64 = within.map(|(_, count)| count).sum();
    ensure!(within <= 1000 + 5, "{within} commands in scripts: {calls:?}");
    Ok(())
}

/// Otherwise a caller that acquires the same lock again would find it busy, and wait in its queue.
async fn a_dropped_guard_is_released_before_the_next_request(cluster: &Cluster) -> Result<()> {
    let (client, node) = (connect(cluster, "").await?, cluster.node());
    let lock = client.lock("k").ttl(SECOND * 30);
    acquire(&client, "k", SECOND * 30).await?.release().await?;
    execute(node, &["CONFIG", "RESETSTAT"])?;
    for round in 0..100 {
        let attempt = lock.try_acquire().await?;
        ensure!(attempt.granted().is_ok(), "busy in round {round}");
    }
    client.flush().await?;
    ensure!(of(&calls(node)?, "evalsha") == 200);
    Ok(())
}

async fn a_handoff_is_one_command_and_one_message_however_many_wait(
    cluster: &Cluster,
) -> Result<()> {
    let clients = [connect(cluster, "").await?, connect(cluster, "").await?];
    // The first ones teach the server the scripts.
    clients[0].lock("k").acquire().await?.release().await?;
    let mut costs = Vec::new();
    for waiters in [1, 10, 100] {
        let mut calls = hand_off(cluster.node(), &clients, waiters).await?;
        for _ in 0..10 {
            // Waiters also poll every few seconds, which on a slow machine may be now.
            if sent(&calls) == 1 {
                break;
            }
            calls = hand_off(cluster.node(), &clients, waiters).await?;
        }
        ensure!(sent(&calls) == 1 && of(&calls, "evalsha") == 1, "{waiters}: {calls:?}");
        ensure!(of(&calls, "publish") == 1, "{waiters}: {calls:?}");
        costs.push(calls.iter().filter(|(name, _)| inside(name)).map(|(_, n)| n).sum::<u64>());
    }
    ensure!(costs.iter().all(|cost| *cost == costs[0]), "calls inside the script: {costs:?}");
    println!("one handoff: 1 command, 1 message, {} calls inside the script", costs[0]);
    Ok(())
}

/// Which commands the server gets while the lock is handed to the first of so many waiters.
async fn hand_off(
    node: &Node,
    clients: &[Client; 2],
    waiters: usize,
) -> Result<BTreeMap<String, u64>> {
    let guard = acquire(&clients[0], "k", LONG).await?;
    let mut waiting = tokio::task::JoinSet::new();
    for number in 0..waiters {
        waiting.spawn(clients[number % 2].lock("k").ttl(LONG).acquire());
    }
    until_waiters(&clients[0].lock("k"), waiters).await?;
    until_quiet(node).await?;
    execute(node, &["CONFIG", "RESETSTAT"])?;
    guard.release().await?;
    let mut next = soon("the first waiter's grant", waiting.join_next()).await?;
    let calls = calls(node)?;
    while let Some(granted) = next {
        granted??.release().await?;
        next = soon("the next grant", waiting.join_next()).await?;
    }
    Ok(calls)
}

/// Waits until no client sends anything: waiters that have just subscribed recheck once.
pub(crate) async fn until_quiet(node: &Node) -> Result<()> {
    let check = async {
        let mut last = 0;
        loop {
            let now = of(&calls(node)?, "evalsha");
            if now == last {
                return anyhow::Ok(());
            }
            last = now;
            tokio::time::sleep(SECOND / 10).await;
        }
    };
    soon("silence", check).await?
}

fn inside(name: &str) -> bool {
    !["evalsha", "info", "config|resetstat"].contains(&name)
}

async fn many_locks_are_renewed_in_few_commands(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let node = cluster.node();
    let ttl = SECOND * 3;
    let mut guards = Vec::new();
    for number in 0..300 {
        let name = format!("k{number}");
        guards.push(acquire(&client, &name, ttl).await?);
    }
    execute(node, &["CONFIG", "RESETSTAT"])?;
    tokio::time::sleep(ttl * 2).await;
    let calls = calls(node)?;
    let (renewals, locks) = (of(&calls, "evalsha"), of(&calls, "hexists"));
    // Six rounds of three calls; a few more if the locks are not all due at once, and fewer rounds
    // on a slow machine.
    ensure!(locks >= 900 && renewals * 20 <= locks, "{renewals} calls for {locks} renewals");
    for guard in &guards {
        guard.check().context("it was renewed")?;
    }
    println!("{locks} renewals in {renewals} commands");
    Ok(())
}
