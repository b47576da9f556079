//! An earlier version of tenure, which has no modes and no ranges of tokens, on the same locks.

use anyhow::{Context, Result, ensure};
use tenure_conformance::context::renew;
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use crate::modes::{backend, shared};
use crate::{LONG, acquire, connect, execute, number, texts};

server_cases! {
    a_waiter_of_an_earlier_version_is_granted_a_single_token Redis;
    a_reader_that_an_earlier_version_let_in_alone_is_renewed_and_released Redis;
}

/// Its renewals compare its token with the last one that the state names.
async fn a_waiter_of_an_earlier_version_is_granted_a_single_token(cluster: &Cluster) -> Result<()> {
    let (client, node) = (connect(cluster, "").await?, cluster.node());
    let guard = acquire(&client, "k", LONG).await?;
    let old = "0aa1dbd8-6d52-4b6f-a5d8-0b0d9ab0f6a4:57";
    let deadline = texts(node, &["EVAL", "return redis.call('TIME')[1]", "0"])?.concat();
    let deadline = deadline.parse::<u64>()? * 1000 + 9_000;
    execute(node, &["ZADD", "tenure:q:{k}", "1", old])?;
    // A name that begins like a mode.
    let entry = format!("{deadline} 10000 s web-3\thost\t7\tnote");
    execute(node, &["HSET", "tenure:w:{k}", old, &entry])?;
    let last = guard.token().get() + 1023;
    guard.release().await?;
    ensure!(texts(node, &["HKEYS", "k"])? == [old], "it was granted beside others");
    let state = texts(node, &["HMGET", "tenure:s:{k}", "token", "first", "owner", "note"])?;
    ensure!(state[0] == state[1] && state[0].parse::<u64>()? > last, "{state:?}");
    ensure!(state[2] == old && state[3] == "s web-3\thost\t7\tnote", "{state:?}");
    let shown = client.lock("k").status().await?.context("it is held")?;
    let token = shown.holder().token.context("it is known")?;
    ensure!(token.to_string() == state[0] && shown.holder().owner == "s web-3", "{shown:?}");
    ensure!(client.lock("k").evict(token).await?);
    Ok(())
}

async fn a_reader_that_an_earlier_version_let_in_alone_is_renewed_and_released(
    cluster: &Cluster,
) -> Result<()> {
    let (backend, node) = (backend(cluster, "").await?, cluster.node());
    let mut reader = shared("k")?;
    // What the script of an earlier version writes when it hands the lock to a reader's entry.
    let (owner, since) = (reader.owner.to_string(), "1700000000000");
    execute(node, &["HSET", "k", &owner, "1"])?;
    execute(node, &["PEXPIRE", "k", "10000"])?;
    let token = "1700000000000000";
    execute(node, &["HSET", "tenure:s:{k}", "token", token, "owner", &owner, "since", since])?;
    let grant = backend.try_acquire(&reader).await?.granted()?;
    ensure!(grant.token.to_string() == token, "{grant:?}");
    reader.token = Some(grant.token);
    renew(&*backend, &[reader.clone()]).await.remove(0)?;
    ensure!(number(node, &["PTTL", "k"])? > 15_000, "it was not renewed");
    ensure!(backend.release(&reader).await?, "it was held");
    ensure!(number(node, &["EXISTS", "k"])? == 0);
    Ok(())
}
