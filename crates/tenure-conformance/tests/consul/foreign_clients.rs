//! Foreign clients on the same keys: `consul lock`, and what Consul's own library leaves behind.

use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use tenure::{Attempt, ErrorKind, LostReason};
use tenure_conformance::context::{acquire_free, expect_busy, soon};
use tenure_conformance::server_cases;
use tenure_servers::wire::http::json_field;
use tenure_servers::{Bundle, Cluster, tool, wait_until};

use super::{SECOND, connect, field, keys, put, stored};

server_cases! {
    consul_lock_and_tenure_wait_for_each_other Consul;
    loops_of_consul_lock_and_tenure_count_exactly_and_tokens_grow Consul;
    key_left_by_a_foreign_client_is_acquired_with_a_higher_token Consul;
    waiter_waits_for_a_lock_delay_and_busy_names_it Consul;
    key_that_is_not_a_lock_is_refused Consul;
    write_of_a_foreign_client_does_not_end_the_lock Consul;
}

/// `consul lock NAME sh -c SCRIPT`.
fn consul_lock(cluster: &Cluster, name: &str, script: &str) -> Result<Child> {
    let mut command = tool(Bundle::Consul, "consul")?;
    let address = format!("-http-addr={}", cluster.node().address());
    command.args(["lock", &address, name, script]);
    // Otherwise it passes the variables of its own loader on to the shell.
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
}

async fn ended(mut child: Child) -> Result<()> {
    let wait = tokio::task::spawn_blocking(move || child.wait());
    let status = soon("consul lock", wait).await???;
    ensure!(status.success(), "consul lock ended with {status}");
    Ok(())
}

async fn consul_lock_and_tenure_wait_for_each_other(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster).await?;
    let folder = tempfile::tempdir()?;
    let (begun, go) = (folder.path().join("begun"), folder.path().join("go"));
    let lock = client.lock("foo");
    let guard = acquire_free(&lock).await?;
    let script =
        format!("touch {}; while [ ! -e {} ]; do sleep 0.02; done", begun.display(), go.display());
    let child = consul_lock(cluster, "foo", &script)?;
    // Its session exists when it has started to acquire.
    let started = || match list_sessions(cluster) {
        Ok(sessions) if sessions.contains("Consul lock for") => Ok(()),
        Ok(sessions) => Err(anyhow::anyhow!("{sessions}")),
        Err(error) => Err(error),
    };
    tokio::task::block_in_place(|| wait_until(SECOND * 20, started))?;
    ensure!(!begun.exists(), "consul lock ran while tenure held");
    guard.release().await?;
    let runs = || begun.exists().then_some(()).context("consul lock runs");
    tokio::task::block_in_place(|| wait_until(SECOND * 20, runs))?;
    expect_busy(&lock).await?;
    let holding = lock.status().await?.context("it is held")?;
    ensure!(holding.holder().owner.contains("Consul"), "{holding:?}");
    let waiter = tokio::spawn(lock.acquire());
    std::fs::write(go, "")?;
    ended(child).await?;
    soon("tenure's grant", waiter).await???.release().await?;
    ensure!(stored(cluster.node(), "foo/.lock")?.is_none(), "a key was left behind");
    Ok(())
}

fn list_sessions(cluster: &Cluster) -> Result<String> {
    Ok(tenure_servers::wire::http::get(cluster.node().port(), "/v1/session/list")?)
}

async fn loops_of_consul_lock_and_tenure_count_exactly_and_tokens_grow(
    cluster: &Cluster,
) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("counter");
    std::fs::write(&file, "0")?;
    let script = format!("n=$(cat {0}); echo $((n+1)) > {0}", file.display());
    let foreign = (0..2).map(|_| {
        let script = script.clone();
        async move {
            for _ in 0..6 {
                ended(consul_lock(cluster, "count", &script)?).await?;
            }
            anyhow::Ok(())
        }
    });
    let own = (0..2).map(|_| {
        let file = file.clone();
        async move {
            let client = connect(cluster).await?;
            let mut tokens = Vec::new();
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
    let (foreign, own) = futures_util::future::join(
        futures_util::future::try_join_all(foreign),
        futures_util::future::try_join_all(own),
    )
    .await;
    foreign?;
    let count: u64 = std::fs::read_to_string(&file)?.trim().parse()?;
    ensure!(count == 32, "{count} of 32");
    let mut tokens = own?.concat();
    tokens.sort();
    let grows = tokens.windows(2).all(|pair| pair[0].1 < pair[1].1);
    ensure!(grows, "tokens in the order of the grants: {tokens:?}");
    Ok(())
}

/// Consul's own library releases by clearing the session and leaves the key.
async fn key_left_by_a_foreign_client_is_acquired_with_a_higher_token(
    cluster: &Cluster,
) -> Result<()> {
    let client = connect(cluster).await?;
    let node = cluster.node();
    let session = session(cluster, "0s")?;
    let path = format!("/v1/kv/k/.lock?acquire={session}&flags=3304740253564472344");
    ensure!(put(node, &path, "a peer")?.trim() == "true");
    let lock = client.lock("k");
    expect_busy(&lock).await?;
    let waiter = tokio::spawn(lock.acquire());
    let held: u64 = field(node, "k/.lock", "ModifyIndex")?.parse()?;
    put(node, &path.replace("acquire", "release"), "a peer")?;
    let guard = soon("the waiter's grant", waiter).await???;
    ensure!(guard.token().get() > held * 1024, "{} after {held}", guard.token());
    ensure!(put(node, &path, "a peer")?.trim() == "false", "a foreign client acquired a held lock");
    guard.release().await?;
    // LockIndex starts again here; ModifyIndex, the token, does not.
    let next = acquire_free(&lock).await?;
    ensure!(field(node, "k/.lock", "LockIndex")? == "1");
    ensure!(next.token().get() > held * 1024);
    next.release().await?;
    ensure!(!keys(node)?.contains("k/"), "left: {}", keys(node)?);
    Ok(())
}

async fn waiter_waits_for_a_lock_delay_and_busy_names_it(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster).await?;
    let node = cluster.node();
    let session = session(cluster, "3s")?;
    let path = format!("/v1/kv/k/.lock?acquire={session}&flags=3304740253564472344");
    ensure!(put(node, &path, "")?.trim() == "true");
    put(node, &format!("/v1/session/destroy/{session}"), "")?;
    let start = std::time::Instant::now();
    let Attempt::Busy(busy) = client.lock("k").try_acquire().await? else {
        anyhow::bail!("acquired during the lock-delay");
    };
    ensure!(busy.to_string().contains("lock-delay"), "{busy}");
    ensure!(busy.retry_after.is_some());
    let guard = soon("the end of the lock-delay", client.lock("k").acquire()).await??;
    ensure!(start.elapsed() > SECOND * 2, "after {:?}", start.elapsed());
    guard.release().await?;
    Ok(())
}

async fn key_that_is_not_a_lock_is_refused(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster).await?;
    put(cluster.node(), "/v1/kv/k/.lock", "mine")?;
    let error = client.lock("k").try_acquire().await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Invalid, "{error:?}");
    ensure!(field(cluster.node(), "k/.lock", "Value")? == "bWluZQ==", "it was overwritten");
    Ok(())
}

/// A plain write leaves the key with its session: the lock is still held, and has to be released.
async fn write_of_a_foreign_client_does_not_end_the_lock(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster).await?;
    let node = cluster.node();
    let lock = client.lock("k").ttl(SECOND);
    let guard = acquire_free(&lock).await?;
    put(node, "/v1/kv/k/.lock", "scribble")?;
    let lost = tokio::time::timeout(SECOND * 2, guard.lost()).await;
    ensure!(lost.is_err(), "{lost:?}");
    expect_busy(&lock).await?;
    guard.release().await?;
    ensure!(stored(node, "k/.lock")?.is_none(), "not released");
    // Deleting the key does end it.
    let guard = acquire_free(&lock).await?;
    tenure_servers::wire::http::request(node.port(), "DELETE", "/v1/kv/k/.lock", "")?;
    let lost = soon("the loss", guard.lost()).await?;
    ensure!(lost.reason() == LostReason::Evicted, "{lost}");
    Ok(())
}

/// Creates a session as a Go service does, with this lock-delay.
fn session(cluster: &Cluster, delay: &str) -> Result<String> {
    let body = format!(r#"{{"Name":"Consul API Lock","TTL":"60s","LockDelay":"{delay}"}}"#);
    let response = put(cluster.node(), "/v1/session/create", &body)?;
    json_field(&response, "ID").context("an id")
}
