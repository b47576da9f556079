//! Foreign clients on the same keys: `etcdctl lock`, and locks whose names have slashes.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tenure::backends::Etcd;
use tenure::{Attempt, Client, Key};
use tenure_conformance::context::{acquire_free, expect_busy, soon, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::wire::http::json_field;
use tenure_servers::{Bundle, Cluster, tool};

use super::{base64, gateway, name};

server_cases! {
    etcdctl_and_tenure_exclude_each_other_and_queue_in_one_order Etcd;
    a_lock_does_not_wait_for_a_foreign_lock_below_it Etcd;
    a_space_is_what_etcdctl_calls_a_prefix Etcd;
    a_condition_holds_exactly_as_long_as_the_lock Etcd;
}

/// `etcdctl lock NAME`, which holds until it is told to end.
pub(crate) struct Etcdctl {
    child: Child,
    output: Option<BufReader<ChildStdout>>,
}

impl Etcdctl {
    pub(crate) fn lock(cluster: &Cluster, name: &str) -> Result<Etcdctl> {
        let mut command = tool(Bundle::Etcd, "etcdctl")?;
        command.args(["--endpoints", &cluster.node().address(), "lock", "--ttl", "10", name]);
        let mut child = command.env("ETCDCTL_API", "3").stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().map(BufReader::new);
        Ok(Etcdctl { child, output })
    }

    /// Waits until it holds: then it prints its key.
    pub(crate) async fn held(&mut self) -> Result<String> {
        let mut output = self.output.take().context("called once")?;
        let read = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            output.read_line(&mut line).map(|_| line)
        });
        let line = soon("etcdctl's lock", read).await???;
        ensure!(!line.is_empty(), "etcdctl ended without the lock");
        Ok(line.trim_end().to_owned())
    }

    pub(crate) fn end(mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("a pid")?, Signal::INT)?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Etcdctl {
    fn drop(&mut self) {
        // It has ended unless the case failed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

async fn etcdctl_and_tenure_exclude_each_other_and_queue_in_one_order(
    cluster: &Cluster,
) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    let name = name();
    let lock = client.lock(&name);
    let guard = acquire_free(&lock).await?;
    let mut etcdctl = Etcdctl::lock(cluster, &name)?;
    until_waiters(&lock, 1).await?;
    let mut waiter = tokio::spawn(lock.acquire());
    until_waiters(&lock, 2).await?;
    let first = guard.token();
    guard.release().await?;

    // etcdctl came before tenure's second claim.
    let key = etcdctl.held().await?;
    ensure!(key.starts_with(&format!("{name}/")), "{key}");
    expect_busy(&lock).await?;
    let holding = lock.status().await?.context("etcdctl holds it")?;
    ensure!(holding.waiters.len() == 1 && !waiter.is_finished(), "{holding:?}");
    ensure!(holding.holder().token > Some(first) && holding.holder().ttl_left.is_some());

    etcdctl.end()?;
    let guard = soon("the lock after etcdctl", &mut waiter).await???;
    ensure!(Some(guard.token()) > holding.holder().token, "a token went back");
    guard.release().await?;
    Ok(())
}

/// Go's own package would wait here. A claim that waits and one that does not must both pass.
async fn a_lock_does_not_wait_for_a_foreign_lock_below_it(cluster: &Cluster) -> Result<()> {
    let one = tenure::connect(&cluster.url()).await?;
    let two = tenure::connect(&cluster.url()).await?;
    let name = name();
    let below = base64(format!("{name}/b/1f"));
    gateway(cluster.node(), "/v3/kv/put", &format!(r#"{{"key":"{below}"}}"#))?;
    let lock = one.lock(&name);
    acquire_free(&lock).await?.release().await?;
    let guard = soon("acquire", lock.acquire()).await??;
    expect_busy(&two.lock(&name)).await?;
    let waiter = tokio::spawn(two.lock(&name).acquire());
    until_waiters(&lock, 1).await?;
    let listed = one.list(&name).await?;
    ensure!(listed.len() == 1, "{listed:?}");
    ensure!(lock.evict(guard.token()).await?, "the grant was there");
    soon("the waiter's grant", waiter).await???.release().await?;
    Ok(())
}

async fn a_space_is_what_etcdctl_calls_a_prefix(cluster: &Cluster) -> Result<()> {
    let url = format!("{}/spaces/{}/", cluster.url(), name());
    let client = tenure::connect(&url).await?;
    let plain = tenure::connect(&cluster.url()).await?;
    let guard = acquire_free(&client.lock("nightly")).await?;
    acquire_free(&plain.lock("nightly")).await?.release().await?;
    ensure!(client.list("").await?.len() == 1 && client.list("n").await?.len() == 1);
    let space = url.split_once("/spaces/").context("it has a path")?.1;
    let mut etcdctl = Etcdctl::lock(cluster, &format!("spaces/{space}nightly"))?;
    until_waiters(&client.lock("nightly"), 1).await?;
    guard.release().await?;
    etcdctl.held().await?;
    expect_busy(&client.lock("nightly")).await?;
    etcdctl.end()
}

async fn a_condition_holds_exactly_as_long_as_the_lock(cluster: &Cluster) -> Result<()> {
    let etcd = Etcd::open(&cluster.url()).await?;
    let client = Client::new(etcd.clone());
    let key = Key::new(name())?;
    let guard = acquire_free(&client.lock(&key)).await?;
    let condition = etcd.condition(&key, guard.token()).await?.context("it is held")?;
    let written = || -> Result<bool> {
        let locked = base64(&condition.key);
        let revision = condition.create_revision;
        let compare =
            format!(r#"{{"target":"CREATE","key":"{locked}","createRevision":"{revision}"}}"#);
        let put = format!(r#"{{"requestPut":{{"key":"{}","value":"eA=="}}}}"#, base64("work"));
        let body = format!(r#"{{"compare":[{compare}],"success":[{put}]}}"#);
        let response = gateway(cluster.node(), "/v3/kv/txn", &body)?;
        Ok(json_field(&response, "succeeded").is_some_and(|value| value == "true"))
    };
    ensure!(written()?, "the holder's transaction was refused");
    ensure!(client.lock(&key).evict(guard.token()).await?);
    ensure!(!written()?, "an evicted holder's transaction took effect");
    let next = soon("acquire", client.lock(&key).acquire()).await??;
    ensure!(!written()?, "a stale holder's transaction took effect");
    ensure!(etcd.condition(&key, guard.token()).await?.is_none());
    ensure!(etcd.condition(&key, next.token()).await?.is_some());
    // A waiter has a revision, but no grant.
    let other = Client::new(Etcd::open(&cluster.url()).await?);
    let waiting = other.lock(&key).acquire_within(std::time::Duration::from_millis(50));
    ensure!(matches!(waiting.await?, Attempt::Busy(_)));
    next.release().await?;
    Ok(())
}
