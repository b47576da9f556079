//! redsync, redis-py and node-redlock themselves, in processes of their own, on the same locks.
//!
//! They need `go`, `python3` and `node` with their registries:
//! `cargo test -p tenure-conformance --test redis -- string_locks::`.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use tenure::Attempt;
use tenure_conformance::context::{SOON, soon, until, until_waiters};
use tenure_conformance::program::Peer;
use tenure_conformance::server_cases;
use tenure_peers::{Language, Recipe};
use tenure_servers::{Cluster, Node};

use crate::{LONG, acquire, connect, texts, wait_for};

/// As the pages name a lock.
const NAME: &str = "orders/42";

server_cases! {
    redsync_and_tenure_exclude_each_other Redis;
    redis_py_and_tenure_exclude_each_other Redis;
    node_redlock_and_tenure_exclude_each_other Redis;
    redsync_and_tenure_exclude_each_other_on_five_masters Redis5;
    node_redlock_and_tenure_exclude_each_other_on_five_masters Redis5;
}

const REDSYNC: Recipe = Recipe {
    name: "redsync",
    language: Language::Go,
    sources: &[("peer.go", include_str!("string_locks/redsync.go"))],
    packages: &["github.com/go-redsync/redsync/v4@v4.18.1", "github.com/redis/go-redis/v9@v9.23.0"],
};
const REDIS_PY: Recipe = Recipe {
    name: "redis-py",
    language: Language::Python,
    sources: &[("peer.py", include_str!("string_locks/redis_py.py"))],
    packages: &["redis==8.1.0"],
};
const NODE_REDLOCK: Recipe = Recipe {
    name: "node-redlock",
    language: Language::Javascript,
    sources: &[("peer.mjs", include_str!("string_locks/node_redlock.mjs"))],
    packages: &["redlock@5.0.0-beta.2", "ioredis@5"],
};

async fn redsync_and_tenure_exclude_each_other(cluster: &Cluster) -> Result<()> {
    exclude_each_other(cluster, &REDSYNC, "layout=plain").await
}

async fn redis_py_and_tenure_exclude_each_other(cluster: &Cluster) -> Result<()> {
    exclude_each_other(cluster, &REDIS_PY, "layout=plain").await
}

async fn node_redlock_and_tenure_exclude_each_other(cluster: &Cluster) -> Result<()> {
    exclude_each_other(cluster, &NODE_REDLOCK, "layout=plain").await
}

async fn redsync_and_tenure_exclude_each_other_on_five_masters(cluster: &Cluster) -> Result<()> {
    exclude_each_other(cluster, &REDSYNC, "nodes=durable").await
}

async fn node_redlock_and_tenure_exclude_each_other_on_five_masters(
    cluster: &Cluster,
) -> Result<()> {
    exclude_each_other(cluster, &NODE_REDLOCK, "nodes=durable").await
}

/// The peer holds while tenure waits, then tenure while the peer waits.
async fn exclude_each_other(cluster: &Cluster, recipe: &Recipe, options: &str) -> Result<()> {
    let client = connect(cluster, options).await?;
    let lock = client.lock(NAME);
    let mut peer = start(cluster, recipe)?;
    let order = |verb: &str| format!("{verb} a {NAME}");
    for _ in 0..3 {
        peer.execute(&order("lock"), "a locked").await?;
        let Attempt::Busy(busy) = lock.try_acquire().await? else {
            anyhow::bail!("two holders");
        };
        let holder = busy.holder.context("the holder is known")?;
        ensure!(holder.token.is_none() && holder.ttl_left.is_some(), "{holder:?}");
        let waiter = wait_for(&client, NAME, LONG);
        until_waiters(&lock, 1).await?;
        ensure!(!waiter.is_finished(), "two holders");
        peer.execute(&order("unlock"), "a unlocked").await?;
        let guard = soon("tenure's grant", waiter).await???;

        peer.execute(&order("try"), "a busy").await?;
        let before = attempts(cluster.node())?;
        peer.send(&order("lock"))?;
        until_attempt(cluster.node(), before).await?;
        guard.release().await?;
        peer.expect_response("a locked").await?;
        ensure!(matches!(lock.try_acquire().await?, Attempt::Busy(_)), "two holders");
        peer.execute(&order("unlock"), "a unlocked").await?;
        acquire(&client, NAME, LONG).await?.release().await?;
    }
    Ok(())
}

/// Waits until the peer has tried to acquire. tenure, which holds meanwhile, sends nothing of this
/// kind that soon: its renewals come every ten seconds.
async fn until_attempt(node: &Node, before: u64) -> Result<()> {
    let check = async || Ok((attempts(node)? > before).then_some(()));
    until(SOON, "an attempt of the peer", check).await
}

/// How many strings and scripts the server was sent: node-redlock sets in a script.
fn attempts(node: &Node) -> Result<u64> {
    let text = texts(node, &["INFO", "commandstats"])?.concat();
    let calls = text.lines().filter_map(|line| {
        let (command, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = figures.split(',').next()?.parse::<u64>().ok()?;
        ["eval", "evalsha", "set", "setnx"].contains(&command).then_some(calls)
    });
    Ok(calls.sum())
}

fn start(cluster: &Cluster, recipe: &Recipe) -> Result<Peer> {
    let urls: Vec<String> = cluster.nodes().iter().map(Node::url).collect();
    Peer::start(recipe, Path::new(env!("CARGO_TARGET_TMPDIR")), &urls.join(" "))
}
