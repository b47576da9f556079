//! Other programs on the same keys: `consul lock`, and what Consul's own library leaves behind.

use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use tenure::{Attempt, ErrorKind, LostReason};
use tenure_conformance::bench::{expect_busy, soon, take};
use tenure_conformance::server_cases;
use tenure_servers::wire::http::json_field;
use tenure_servers::{Bundle, Cluster, tool, wait_until};

use super::{SECOND, connect, field, keys, put, stored};

server_cases! {
    consul_lock_waits_for_tenure_and_the_other_way_round Consul;
    loops_of_consul_lock_and_tenure_count_exactly_and_tokens_grow Consul;
    a_key_that_a_peer_left_is_taken_and_counts_on Consul;
    a_lock_delay_is_waited_for_and_named Consul;
    a_key_of_another_use_is_refused Consul;
    a_stranger_who_writes_into_the_key_does_not_take_the_lock Consul;
}

/// `consul lock NAME sh -c SCRIPT`.
fn consul_lock(cluster: &Cluster, name: &str, script: &str) -> Result<Child> {
    let mut command = tool(Bundle::Consul, "consul")?;
    let address = format!("-http-addr={}", cluster.node().address());
    command.args(["lock", &address, name, script]);
    // It hands its own loader's variables on to the shell otherwise.
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
}

async fn ended(mut child: Child) -> Result<()> {
    let wait = tokio::task::spawn_blocking(move || child.wait());
    let status = soon("consul lock", wait).await???;
    ensure!(status.success(), "consul lock ended with {status}");
    Ok(())
}

async fn consul_lock_waits_for_tenure_and_the_other_way_round(cluster: &Cluster) -> Result<()> {
    let (client, folder) = (connect(cluster).await?, tempfile::tempdir()?);
    let (begun, go) = (folder.path().join("begun"), folder.path().join("go"));
    let lock = client.lock("foo");
    let guard = take(&lock).await?;
    let script =
        format!("touch {}; while [ ! -e {} ]; do sleep 0.02; done", begun.display(), go.display());
    let child = consul_lock(cluster, "foo", &script)?;
    // Its session is there when it has begun to ask.
    let asks = || match put_list(cluster) {
        Ok(sessions) if sessions.contains("Consul lock for") => Ok(()),
        Ok(sessions) => Err(anyhow::anyhow!("{sessions}")),
        Err(error) => Err(error),
    };
    tokio::task::block_in_place(|| wait_until(SECOND * 20, asks))?;
    ensure!(!begun.exists(), "consul lock ran while tenure held");
    guard.release().await?;
    let runs = || begun.exists().then_some(()).context("consul lock runs");
    tokio::task::block_in_place(|| wait_until(SECOND * 20, runs))?;
    expect_busy(&lock).await?;
    let holding = lock.holding().await?.context("it is held")?;
    ensure!(holding.holder.name.contains("Consul"), "{holding:?}");
    let waiter = tokio::spawn(lock.acquire());
    std::fs::write(go, "")?;
    ended(child).await?;
    soon("tenure's grant", waiter).await???.release().await?;
    ensure!(stored(cluster.node(), "foo/.lock")?.is_none(), "a key was left behind");
    Ok(())
}

fn put_list(cluster: &Cluster) -> Result<String> {
    Ok(tenure_servers::wire::http::get(cluster.node().port(), "/v1/session/list")?)
}

async fn loops_of_consul_lock_and_tenure_count_exactly_and_tokens_grow(
    cluster: &Cluster,
) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("counter");
    std::fs::write(&file, "0")?;
    let script = format!("n=$(cat {0}); echo $((n+1)) > {0}", file.display());
    let strangers = (0..2).map(|_| {
        let script = script.clone();
        async move {
            for _ in 0..6 {
                ended(consul_lock(cluster, "count", &script)?).await?;
            }
            anyhow::Ok(())
        }
    });
    let ours = (0..2).map(|_| {
        let file = file.clone();
        async move {
            let (client, mut tokens) = (connect(cluster).await?, Vec::new());
            for _ in 0..10 {
                let guard = soon("acquire", client.lock("count").acquire()).await??;
                let count: u64 = std::fs::read_to_string(&file)?.trim().parse()?;
                std::fs::write(&file, (count + 1).to_string())?;
                tokens.push((count, guard.token()));
                guard.release().await?;
            }
            anyhow::Ok(tokens)
        }
    });
    let (strangers, ours) = futures_util::future::join(
        futures_util::future::try_join_all(strangers),
        futures_util::future::try_join_all(ours),
    )
    .await;
    strangers?;
    let count: u64 = std::fs::read_to_string(&file)?.trim().parse()?;
    ensure!(count == 32, "{count} of 32");
    let mut tokens = ours?.concat();
    tokens.sort();
    let grows = tokens.windows(2).all(|pair| pair[0].1 < pair[1].1);
    ensure!(grows, "tokens in the order of the grants: {tokens:?}");
    Ok(())
}

/// Consul's own library releases by clearing the session and leaves the key.
async fn a_key_that_a_peer_left_is_taken_and_counts_on(cluster: &Cluster) -> Result<()> {
    let (client, node) = (connect(cluster).await?, cluster.node());
    let session = session(cluster, "0s")?;
    let path = format!("/v1/kv/k/.lock?acquire={session}&flags=3304740253564472344");
    ensure!(put(node, &path, "a peer")?.trim() == "true");
    let lock = client.lock("k");
    expect_busy(&lock).await?;
    let waiter = tokio::spawn(lock.acquire());
    let held: u64 = field(node, "k/.lock", "ModifyIndex")?.parse()?;
    put(node, &path.replace("acquire", "release"), "a peer")?;
    let guard = soon("the waiter's grant", waiter).await???;
    ensure!(guard.token().get() > held, "{} after {held}", guard.token());
    ensure!(put(node, &path, "a peer")?.trim() == "false", "a peer took a held lock");
    guard.release().await?;
    // LockIndex would have begun anew here; what we use does not.
    let next = take(&lock).await?;
    ensure!(field(node, "k/.lock", "LockIndex")? == "1");
    ensure!(next.token().get() > held);
    next.release().await?;
    ensure!(!keys(node)?.contains("k/"), "left: {}", keys(node)?);
    Ok(())
}

async fn a_lock_delay_is_waited_for_and_named(cluster: &Cluster) -> Result<()> {
    let (client, node) = (connect(cluster).await?, cluster.node());
    let session = session(cluster, "3s")?;
    let path = format!("/v1/kv/k/.lock?acquire={session}&flags=3304740253564472344");
    ensure!(put(node, &path, "")?.trim() == "true");
    put(node, &format!("/v1/session/destroy/{session}"), "")?;
    let start = std::time::Instant::now();
    let Attempt::Busy(busy) = client.lock("k").try_acquire().await? else {
        anyhow::bail!("taken during the lock-delay");
    };
    ensure!(busy.to_string().contains("lock-delay"), "{busy}");
    ensure!(busy.retry_after.is_some());
    let guard = soon("the end of the lock-delay", client.lock("k").acquire()).await??;
    ensure!(start.elapsed() > SECOND * 2, "after {:?}", start.elapsed());
    guard.release().await?;
    Ok(())
}

async fn a_key_of_another_use_is_refused(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster).await?;
    put(cluster.node(), "/v1/kv/k/.lock", "mine")?;
    let error = client.lock("k").try_acquire().await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Invalid, "{error:?}");
    ensure!(field(cluster.node(), "k/.lock", "Value")? == "bWluZQ==", "it was overwritten");
    Ok(())
}

/// A plain write keeps the session: the lock is still ours, and has to be given back.
async fn a_stranger_who_writes_into_the_key_does_not_take_the_lock(
    cluster: &Cluster,
) -> Result<()> {
    let (client, node) = (connect(cluster).await?, cluster.node());
    let lock = client.lock("k").ttl(SECOND);
    let guard = take(&lock).await?;
    put(node, "/v1/kv/k/.lock", "scribble")?;
    let lost = tokio::time::timeout(SECOND * 2, guard.lost()).await;
    ensure!(lost.is_err(), "{lost:?}");
    expect_busy(&lock).await?;
    guard.release().await?;
    ensure!(stored(node, "k/.lock")?.is_none(), "not given back");
    // Deleting the key does end it.
    let guard = take(&lock).await?;
    tenure_servers::wire::http::request(node.port(), "DELETE", "/v1/kv/k/.lock", "")?;
    let lost = soon("the loss", guard.lost()).await?;
    ensure!(lost.reason() == LostReason::Evicted, "{lost}");
    Ok(())
}

/// A session as a Go service makes it, with this lock-delay.
fn session(cluster: &Cluster, delay: &str) -> Result<String> {
    let body = format!(r#"{{"Name":"Consul API Lock","TTL":"60s","LockDelay":"{delay}"}}"#);
    let answer = put(cluster.node(), "/v1/session/create", &body)?;
    json_field(&answer, "ID").context("an id")
}
