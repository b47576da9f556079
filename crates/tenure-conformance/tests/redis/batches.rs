//! Many claims in one script: requests that are queued on a connection are sent together, and each
//! gets its own response.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt};
use tenure::{Attempt, Client, ErrorKind, Guard};
use tenure_conformance::context::{SOON, soon, until};
use tenure_conformance::server_cases;
use tenure_servers::{Cluster, Node};

use crate::lossy_proxy::LossyProxy;
use crate::{LONG, SECOND, acquire, connect, execute, number, texts};

server_cases! {
    queued_requests_share_scripts Redis;
    each_claim_of_a_batch_has_its_own_response Redis;
    shared_requests_share_scripts_too Redis;
    a_server_that_forgot_its_scripts_costs_no_claim Redis;
    a_batch_that_arrives_late_leaves_no_holder Redis;
    a_server_without_room_refuses_acquires_and_releases_the_rest Redis;
    a_client_that_ends_releases_all_of_very_many_locks Redis;
    a_cluster_gets_no_batches RedisCluster;
}

const CLAIMS: usize = 100;
/// More than a client of an unoptimised build releases in a second.
const VERY_MANY: usize = 30_000;

/// How many scripts the server was sent, by hash or with their text.
fn scripts(node: &Node) -> Result<u64> {
    let text = texts(node, &["INFO", "commandstats"])?.concat();
    let calls = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split(',').next()?.parse::<u64>().ok()
    };
    let sent = ["cmdstat_eval:calls=", "cmdstat_evalsha:calls="].map(calls);
    Ok(sent.into_iter().flatten().sum())
}

fn key(number: usize) -> String {
    format!("k{number}")
}

/// Does something while the server is stopped, so that all of its requests are queued.
async fn while_stopped<T>(
    node: &Node,
    requests: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Result<Vec<T>>
where
    T: Send + 'static,
{
    node.pause()?;
    let (begun, mut waiting) = tokio::sync::mpsc::unbounded_channel();
    let tasks: Vec<_> = requests
        .into_iter()
        .map(|request| {
            let begun = begun.clone();
            tokio::spawn(async move {
                let mut request = Box::pin(request);
                // Its first poll sends or queues the request.
                let first = futures_util::poll!(&mut request);
                begun.send(()).ok();
                match first {
                    std::task::Poll::Ready(output) => output,
                    std::task::Poll::Pending => request.await,
                }
            })
        })
        .collect();
    for _ in &tasks {
        waiting.recv().await;
    }
    node.resume()?;
    let ended = soon("the responses", join_all(tasks)).await?;
    Ok(ended.into_iter().collect::<Result<_, _>>()?)
}

async fn acquire_all(client: &Client, node: &Node, claims: usize) -> Result<Vec<Guard>> {
    let requests: Vec<_> =
        (0..claims).map(|number| client.lock(key(number)).ttl(LONG).try_acquire()).collect();
    let attempts = while_stopped(node, requests).await?;
    attempts.into_iter().map(|attempt| Ok(attempt?.granted()?)).collect()
}

async fn release_all(node: &Node, guards: Vec<Guard>) -> Result<()> {
    for released in while_stopped(node, guards.into_iter().map(Guard::release)).await? {
        released?;
    }
    Ok(())
}

async fn queued_requests_share_scripts(cluster: &Cluster) -> Result<()> {
    for options in ["", "layout=plain", "order=barging"] {
        let (client, node) = (connect(cluster, options).await?, cluster.node());
        acquire(&client, "warm", LONG).await?.release().await?;
        for _ in 0..2 {
            execute(node, &["CONFIG", "RESETSTAT"])?;
            let guards = acquire_all(&client, node, CLAIMS).await?;
            for guard in &guards {
                guard.check()?;
                ensure!(number(node, &["EXISTS", guard.key().as_str()])? == 1);
            }
            release_all(node, guards).await?;
            let sent = scripts(node)?;
            // Some are sent before the first response is missing, and 32 share a script.
            ensure!(sent <= 24, "{sent} scripts for {CLAIMS} acquires and releases");
            for claim in 0..CLAIMS {
                ensure!(number(node, &["EXISTS", &key(claim)])? == 0, "{claim} is still held");
            }
        }
    }
    Ok(())
}

async fn each_claim_of_a_batch_has_its_own_response(cluster: &Cluster) -> Result<()> {
    let (client, other, node) =
        (connect(cluster, "").await?, connect(cluster, "").await?, cluster.node());
    acquire(&client, "warm", LONG).await?.release().await?;
    let mut held = Vec::new();
    for claim in (0..CLAIMS).step_by(3) {
        held.push(acquire(&other, &key(claim), LONG).await?);
    }
    for claim in (1..CLAIMS).step_by(3) {
        execute(node, &["SET", &key(claim), "no lock"])?;
    }
    let requests: Vec<_> =
        (0..CLAIMS).map(|claim| client.lock(key(claim)).ttl(LONG).try_acquire()).collect();
    let attempts = while_stopped(node, requests).await?;
    let mut tokens = BTreeSet::new();
    for (claim, attempt) in attempts.into_iter().enumerate() {
        match (claim % 3, attempt) {
            (0, Ok(Attempt::Busy(busy))) => {
                let holder = busy.holder.context("the holder is known")?;
                ensure!(holder.token == Some(held[claim / 3].token()));
            }
            (1, Err(error)) => ensure!(error.kind() == ErrorKind::Invalid, "{error:?}"),
            (2, Ok(Attempt::Granted(guard))) => {
                let stored = texts(node, &["HGET", &format!("tenure:s:{{k{claim}}}"), "first"])?;
                ensure!(stored == [guard.token().to_string()]);
                tokens.insert(guard.token());
                drop(guard);
            }
            (_, attempt) => anyhow::bail!("claim {claim}: {attempt:?}"),
        }
    }
    ensure!(!tokens.is_empty());
    for claim in (1..CLAIMS).step_by(3) {
        ensure!(texts(node, &["GET", &key(claim)])? == ["no lock"]);
    }
    Ok(())
}

async fn a_server_that_forgot_its_scripts_costs_no_claim(cluster: &Cluster) -> Result<()> {
    let (client, node) = (connect(cluster, "").await?, cluster.node());
    for _ in 0..3 {
        let guards = acquire_all(&client, node, CLAIMS).await?;
        execute(node, &["SCRIPT", "FLUSH"])?;
        release_all(node, guards).await?;
        execute(node, &["SCRIPT", "FLUSH"])?;
    }
    execute(node, &["CONFIG", "RESETSTAT"])?;
    release_all(node, acquire_all(&client, node, CLAIMS).await?).await?;
    let first = scripts(node)?;
    execute(node, &["CONFIG", "RESETSTAT"])?;
    release_all(node, acquire_all(&client, node, CLAIMS).await?).await?;
    ensure!(scripts(node)? <= 24, "batches are sent again: {first}, {}", scripts(node)?);
    Ok(())
}

/// Readers of one key, and permits: in a batch with exclusive claims, each as by itself.
async fn shared_requests_share_scripts_too(cluster: &Cluster) -> Result<()> {
    for options in ["", "layout=plain"] {
        let (client, node) = (connect(cluster, options).await?, cluster.node());
        acquire(&client, "warm", LONG).await?.release().await?;
        execute(node, &["CONFIG", "RESETSTAT"])?;
        let requests: Vec<_> = (0..CLAIMS)
            .map(|claim| match claim % 2 {
                0 => client.lock("k").shared().ttl(LONG).try_acquire(),
                _ => client.lock(key(claim)).ttl(LONG).try_acquire(),
            })
            .collect();
        let attempts = while_stopped(node, requests).await?;
        let guards: Vec<Guard> =
            attempts.into_iter().map(|attempt| Ok(attempt?.granted()?)).collect::<Result<_>>()?;
        let tokens: BTreeSet<_> = guards.iter().map(Guard::token).collect();
        ensure!(number(node, &["ZCARD", "tenure:r:{k}"])? == CLAIMS as i64 / 2);
        ensure!(tokens.len() > CLAIMS / 2, "readers share tokens");
        release_all(node, guards).await?;
        ensure!(scripts(node)? <= 24, "{} scripts", scripts(node)?);
        ensure!(number(node, &["EXISTS", "k", "tenure:r:{k}", "tenure:h:{k}"])? == 0);
    }
    Ok(())
}

/// The batch is held up in the network, its callers give up, and the client releases over another
/// connection, before it arrives.
async fn a_batch_that_arrives_late_leaves_no_holder(cluster: &Cluster) -> Result<()> {
    let node = cluster.node();
    let proxy = LossyProxy::start(node.port())?;
    let url = node.url_at(&proxy.address()) + "?response=600ms";
    let client = tenure::connect(&url).await?;
    acquire(&client, "warm", LONG).await?.release().await?;
    proxy.stall();
    let attempts: Vec<_> = (0..CLAIMS)
        .map(|claim| tokio::spawn(client.lock(key(claim)).ttl(SECOND).try_acquire()))
        .collect();
    for (claim, attempt) in attempts.into_iter().enumerate() {
        if claim % 2 == 0 {
            // Its caller drops its future.
            attempt.abort();
        } else if let Ok(attempt) = soon("the attempt", attempt).await?? {
            attempt.granted()?.release().await?;
        }
    }
    let released = async || Ok(client.flush().await.is_ok().then_some(()));
    until(SOON, "the releases", released).await?;
    proxy.go_on();
    // Everything that was held up has arrived when a later request on its connection would have.
    let late = async || {
        let clients = texts(node, &["CLIENT", "LIST"])?.concat();
        Ok((clients.lines().count() <= 3).then_some(()))
    };
    until(SOON, "the end of the late connection", late).await?;
    for claim in 0..CLAIMS {
        ensure!(number(node, &["EXISTS", &key(claim)])? == 0, "a late request holds {claim}");
    }
    Ok(())
}

/// A full server refuses to write, and still deletes.
async fn a_server_without_room_refuses_acquires_and_releases_the_rest(
    cluster: &Cluster,
) -> Result<()> {
    let (client, node) = (connect(cluster, "").await?, cluster.node());
    let guards = acquire_all(&client, node, CLAIMS).await?;
    execute(node, &["CONFIG", "SET", "maxmemory", "1"])?;
    release_all(node, guards).await?;
    let requests: Vec<_> =
        (0..CLAIMS).map(|claim| client.lock(key(claim)).ttl(LONG).try_acquire()).collect();
    for attempt in while_stopped(node, requests).await? {
        let error = attempt.err().context("a full server granted a lock")?;
        ensure!(error.to_string().contains("memory"), "{error}");
    }
    execute(node, &["CONFIG", "SET", "maxmemory", "0"])?;
    for claim in 0..CLAIMS {
        acquire(&client, &key(claim), LONG).await?.release().await?;
    }
    Ok(())
}

/// As at the end of `main`: nothing else would wait for the releases.
async fn a_client_that_ends_releases_all_of_very_many_locks(cluster: &Cluster) -> Result<()> {
    let (client, node) = (connect(cluster, "").await?, cluster.node());
    let acquires = (0..VERY_MANY).map(|claim| client.lock(key(claim)).ttl(LONG).acquire());
    let guards: Vec<_> =
        futures_util::stream::iter(acquires).buffer_unordered(256).try_collect().await?;
    ensure!(texts(node, &["KEYS", "k*"])?.len() == VERY_MANY);
    drop(guards);
    tokio::task::spawn_blocking(|| drop(client)).await?;
    let left = texts(node, &["KEYS", "k*"])?.len();
    ensure!(left == 0, "{left} locks were left to expire");
    Ok(())
}

/// All keys of a script have to be in one slot.
async fn a_cluster_gets_no_batches(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let requests: Vec<_> =
        (0..CLAIMS).map(|claim| client.lock(key(claim)).ttl(LONG).try_acquire()).collect();
    let mut guards = Vec::new();
    for attempt in while_stopped(cluster.node(), requests).await? {
        guards.push(attempt?.granted()?);
    }
    release_all(cluster.node(), guards).await
}
