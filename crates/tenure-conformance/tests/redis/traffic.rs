//! How much the server is asked to do.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use tenure_conformance::bench::{soon, until_waiters};
use tenure_servers::{Cluster, Node};

use crate::{LONG, SECOND, cases, connect, take, tell, texts, wait_for};

cases! {
    taking_and_giving_back_is_two_commands Redis;
    a_hand_over_is_one_command_and_one_message_however_many_wait Redis;
    many_locks_are_renewed_in_few_commands Redis;
}

/// How often each command was called since the last reset, by anybody, also from within scripts.
fn calls(node: &Node) -> Result<BTreeMap<String, u64>> {
    let text = texts(node, &["INFO", "commandstats"])?.concat();
    let line = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    Ok(text.lines().filter_map(line).collect())
}

fn of(calls: &BTreeMap<String, u64>, name: &str) -> u64 {
    calls.get(name).copied().unwrap_or(0)
}

/// Commands that a client sent: what scripts call does not count, nor what this test asks.
fn sent(calls: &BTreeMap<String, u64>) -> u64 {
    ["eval", "evalsha", "subscribe", "unsubscribe", "hello", "ping", "script|load"]
        .iter()
        .map(|name| of(calls, name))
        .sum()
}

async fn taking_and_giving_back_is_two_commands(cluster: &Cluster) -> Result<()> {
    let (client, node) = (connect(cluster, "").await?, cluster.node());
    // The first ones teach the server the scripts.
    client.lock("k").acquire().await?.release().await?;
    tell(node, &["CONFIG", "RESETSTAT"])?;
    for _ in 0..100 {
        client.lock("k").acquire().await?.release().await?;
    }
    let calls = calls(node)?;
    ensure!(of(&calls, "evalsha") == 200 && sent(&calls) == 200, "{calls:?}");
    Ok(())
}

async fn a_hand_over_is_one_command_and_one_message_however_many_wait(
    cluster: &Cluster,
) -> Result<()> {
    let node = cluster.node();
    let (one, two) = (connect(cluster, "").await?, connect(cluster, "").await?);
    // The first ones teach the server the scripts.
    one.lock("k").acquire().await?.release().await?;
    let mut costs = Vec::new();
    for waiters in [1, 10, 100] {
        let key = format!("k{waiters}");
        let mut guard = take(&one, &key, LONG).await?;
        let mut waiting = Vec::new();
        for number in 0..waiters {
            let client = [&one, &two][number % 2];
            waiting.push(wait_for(client, &key, LONG));
            until_waiters(&one.lock(&key), number + 1).await?;
        }
        until_quiet(node).await?;
        tell(node, &["CONFIG", "RESETSTAT"])?;
        guard.release().await?;
        guard = soon("the first waiter's grant", waiting.remove(0)).await???;
        let calls = calls(node)?;
        ensure!(sent(&calls) == 1 && of(&calls, "evalsha") == 1, "{waiters}: {calls:?}");
        ensure!(of(&calls, "publish") == 1, "{waiters}: {calls:?}");
        let inner: u64 = calls.iter().filter(|(name, _)| inside(name)).map(|(_, n)| n).sum();
        costs.push(inner);
        guard.release().await?;
        for waiter in waiting {
            soon("the next grant", waiter).await???.release().await?;
        }
    }
    ensure!(costs.iter().all(|cost| *cost == costs[0]), "calls inside the script: {costs:?}");
    println!("one hand-over: 1 command, 1 message, {} calls inside the script", costs[0]);
    Ok(())
}

/// Those who have just subscribed look once more: waits until nobody sends anything.
async fn until_quiet(node: &Node) -> Result<()> {
    let look = async {
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
    soon("silence", look).await?
}

fn inside(name: &str) -> bool {
    !["evalsha", "info", "config|resetstat"].contains(&name)
}

async fn many_locks_are_renewed_in_few_commands(cluster: &Cluster) -> Result<()> {
    let (client, node) = (connect(cluster, "").await?, cluster.node());
    let ttl = SECOND * 3;
    let mut guards = Vec::new();
    for number in 0..300 {
        let name = format!("k{number}");
        guards.push(take(&client, &name, ttl).await?);
    }
    tell(node, &["CONFIG", "RESETSTAT"])?;
    tokio::time::sleep(ttl * 2).await;
    let calls = calls(node)?;
    let (renewals, locks) = (of(&calls, "evalsha"), of(&calls, "hexists"));
    // Six rounds of three calls; a few more if the locks are not all due at once.
    ensure!(locks >= 1500 && renewals <= 60, "{renewals} calls for {locks} renewals");
    for guard in &guards {
        guard.check().context("it was renewed")?;
    }
    println!("{locks} renewals in {renewals} commands");
    Ok(())
}
