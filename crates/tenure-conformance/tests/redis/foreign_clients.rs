//! Redisson and the string locks on the same keys, by their own commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use tenure::{Attempt, ErrorKind};
use tenure_conformance::context::{SOON, expect_busy, soon, until, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::wire::redis::{Redis, Value};
use tenure_servers::{Cluster, Node};

use crate::modes::read;
use crate::{LONG, SECOND, acquire, connect, execute, number, wait_for, were_quick};

server_cases! {
    redisson_and_tenure_exclude_each_other Redis;
    a_release_by_redisson_wakes_the_first_waiter Redis;
    a_release_wakes_redisson Redis;
    redisson_is_not_starved_by_the_queue Redis;
    string_locks_and_tenure_exclude_each_other Redis;
    foreign_clients_and_readers_exclude_each_other Redis;
}

/// The field that Redisson would write.
const JAVA: &str = "0aa1dbd8-6d52-4b6f-a5d8-0b0d9ab0f6a4:57";

/// RedissonLock.tryLockInnerAsync.
const LOCK: &str = "if ((redis.call('exists', KEYS[1]) == 0) or \
     (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) then \
     redis.call('hincrby', KEYS[1], ARGV[2], 1); \
     redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end; \
     return redis.call('pttl', KEYS[1]);";

/// RedissonLock.unlockInnerAsync.
const UNLOCK: &str = "local val = redis.call('get', KEYS[3]); \
     if val ~= false then return tonumber(val); end; \
     if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil; end; \
     local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); \
     if (counter > 0) then redis.call('pexpire', KEYS[1], ARGV[2]); \
     redis.call('set', KEYS[3], 0, 'px', ARGV[5]); return 0; \
     else redis.call('del', KEYS[1]); redis.call(ARGV[4], KEYS[2], ARGV[1]); \
     redis.call('set', KEYS[3], 1, 'px', ARGV[5]); return 1; end;";

/// Acquires as Redisson does. `true` if it was granted.
fn java_locks(node: &Node, key: &str) -> Result<bool> {
    Ok(execute(node, &["EVAL", LOCK, "1", key, "30000", JAVA])? == Value::Nil)
}

fn java_unlocks(node: &Node, key: &str) -> Result<()> {
    let channel = format!("redisson_lock__channel:{{{key}}}");
    let latch = format!("redisson_unlock_latch:{{{key}}}:0123456789abcdef0123456789abcdef");
    let words = ["EVAL", UNLOCK, "3", key, &channel, &latch, "0", "30000", JAVA, "PUBLISH", "1000"];
    ensure!(execute(node, &words)? == Value::Int(1), "Redisson did not hold it");
    execute(node, &["DEL", &latch])?;
    Ok(())
}

async fn redisson_and_tenure_exclude_each_other(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let node = cluster.node();
    ensure!(java_locks(node, "k")?);
    let Attempt::Busy(busy) = client.lock("k").try_acquire().await? else {
        anyhow::bail!("two holders");
    };
    let holder = busy.holder.context("it is known")?;
    ensure!(holder.owner == JAVA && holder.token.is_none(), "{holder:?}");
    ensure!(holder.ttl_left.is_some(), "{holder:?}");
    java_unlocks(node, "k")?;
    let guard = acquire(&client, "k", LONG).await?;
    ensure!(!java_locks(node, "k")?, "two holders");
    guard.release().await?;
    ensure!(java_locks(node, "k")?);
    Ok(())
}

/// With a ttl of 30 s the next poll without a message would be 3.3 s away.
async fn a_release_by_redisson_wakes_the_first_waiter(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let node = cluster.node();
    let mut times = Vec::new();
    for _ in 0..3 {
        ensure!(java_locks(node, "k")?);
        let first = wait_for(&client, "k", LONG);
        until_waiters(&client.lock("k"), 1).await?;
        let second = wait_for(&client, "k", LONG);
        until_waiters(&client.lock("k"), 2).await?;
        until_listeners(node, "k", 1).await?;
        let start = Instant::now();
        java_unlocks(node, "k")?;
        soon("the first waiter's grant", first).await???.release().await?;
        soon("the second waiter's grant", second).await???.release().await?;
        times.push(start.elapsed());
        until_listeners(node, "k", 0).await?;
    }
    were_quick(&times)
}

/// Waits until so many clients are subscribed to Redisson's channel.
async fn until_listeners(node: &Node, key: &str, count: i64) -> Result<()> {
    let channel = format!("redisson_lock__channel:{{{key}}}");
    let expected = Value::List(vec![Value::Text(channel.clone()), Value::Int(count)]);
    let query = ["PUBSUB", "NUMSUB", &channel];
    let check = async || Ok((execute(node, &query)? == expected).then_some(()));
    until(SOON, &format!("{count} listeners"), check).await
}

async fn a_release_wakes_redisson(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let node = cluster.node();
    let guard = acquire(&client, "k", LONG).await?;
    let mut java = Redis::connect(node.port())?;
    java.command(&["SUBSCRIBE", "redisson_lock__channel:{k}"])?;
    guard.release().await?;
    // This simple client reads the message as the response to its next request.
    let message = java.command(&["PING"])?;
    let expected = ["message", "redisson_lock__channel:{k}", "0"].map(|t| Value::Text(t.into()));
    ensure!(message == Value::List(expected.to_vec()), "{message:?}");
    ensure!(java_locks(node, "k")?);
    Ok(())
}

/// Eight waiters of tenure pass the lock on without a pause, so that it is never free. One of
/// Redisson waits as Redisson does: it tries again with each message.
async fn redisson_is_not_starved_by_the_queue(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let node = cluster.node();
    let guard = acquire(&client, "k", LONG).await?;
    let done = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let lock = client.lock("k").ttl(SECOND * 5);
        let done = done.clone();
        tasks.push(tokio::spawn(async move {
            let mut rounds = 0;
            while !done.load(Ordering::SeqCst) {
                lock.acquire().await?.release().await?;
                rounds += 1;
            }
            anyhow::Ok(rounds)
        }));
    }
    until_waiters(&client.lock("k"), 8).await?;
    let mut subscriber = redis::Client::open(node.url())?.get_async_pubsub().await?;
    subscriber.subscribe("redisson_lock__channel:{k}").await?;
    let mut messages = subscriber.on_message();
    ensure!(!java_locks(node, "k")?, "two holders");
    guard.release().await?;
    let java = async {
        let mut tries = 0;
        loop {
            tries += 1;
            messages.next().await.context("a message")?;
            if java_locks(node, "k")? {
                return anyhow::Ok(tries);
            }
        }
    };
    let tries = soon("Redisson's turn", java).await??;
    done.store(true, Ordering::SeqCst);
    java_unlocks(node, "k")?;
    let mut rounds = 0;
    for task in tasks {
        rounds += soon("the tasks", task).await???;
    }
    ensure!(rounds > 0, "nothing was handed off");
    println!("Redisson got its turn after {tries} tries and {rounds} handoffs");
    Ok(())
}

async fn string_locks_and_tenure_exclude_each_other(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "layout=plain").await?;
    let node = cluster.node();
    let set = ["SET", "k", "a-random-value", "NX", "PX", "30000"];
    ensure!(execute(node, &set)? == Value::Text("OK".into()));
    ensure!(matches!(client.lock("k").try_acquire().await?, Attempt::Busy(_)), "two holders");
    let waiter = wait_for(&client, "k", LONG);
    until_waiters(&client.lock("k"), 1).await?;
    let start = Instant::now();
    let unlock =
        "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) end";
    ensure!(number(node, &["EVAL", unlock, "1", "k", "a-random-value"])? == 1);
    let guard = soon("the waiter's grant", waiter).await???;
    ensure!(start.elapsed() < SECOND * 3, "a handoff took {:?}", start.elapsed());
    ensure!(execute(node, &set)? == Value::Nil, "two holders");
    guard.release().await?;
    ensure!(execute(node, &set)? == Value::Text("OK".into()));
    // A lock without an expiry is busy, not an error.
    execute(node, &["PERSIST", "k"])?;
    ensure!(matches!(client.lock("k").try_acquire().await?, Attempt::Busy(_)), "two holders");
    Ok(())
}

async fn foreign_clients_and_readers_exclude_each_other(cluster: &Cluster) -> Result<()> {
    let node = cluster.node();
    let set = ["SET", "k", "a-random-value", "NX", "PX", "30000"];
    for options in ["", "layout=plain"] {
        let client = connect(cluster, options).await?;
        let granted = || match options {
            "" => java_locks(node, "k"),
            _ => Ok(execute(node, &set)? != Value::Nil),
        };
        let (one, two) = (read(&client, "k").await?, read(&client, "k").await?);
        ensure!(!granted()?, "a foreign client beside readers");
        one.release().await?;
        ensure!(!granted()?, "a foreign client beside a reader");
        two.release().await?;
        ensure!(granted()?, "it is free");
        let reader = client.lock("k").shared().ttl(LONG);
        expect_busy(&reader).await?;
        let waiting = tokio::spawn(reader.acquire());
        until_waiters(&client.lock("k"), 1).await?;
        let error = client.semaphore("k", 2).try_acquire().await.map(drop).unwrap_err();
        ensure!(error.kind() == ErrorKind::Invalid, "{error}");
        execute(node, &["DEL", "k"])?;
        execute(node, &["PUBLISH", "redisson_lock__channel:{k}", "0"])?;
        soon("the reader's grant", waiting).await???.release().await?;
    }
    Ok(())
}
