//! Acquire and release: one task, and 64 tasks on 64 keys.

use std::sync::Arc;

use ::redis::Script;
use ::redis::aio::MultiplexedConnection;
use anyhow::Result;
use futures_util::future::{BoxFuture, try_join_all};
use rslock::LockManager;
use tenure::Client;
use tenure_servers::Topology;
use tokio::runtime::Runtime;

use super::recording::{Recording, Replay};
use super::{TTL, servers};
use crate::compare::{Comparison, Turn};
use crate::warm::Cycle;

pub(crate) fn compare_one_task(rounds: usize) -> Result<Comparison> {
    compare(rounds, 4, 1)
}

pub(crate) fn compare_many_tasks(rounds: usize) -> Result<Comparison> {
    compare(rounds.div_ceil(4), 1, 64)
}

fn compare(rounds: usize, repeat: u32, tasks: usize) -> Result<Comparison> {
    let cluster = servers(Topology::Redis)?;
    let url = cluster.url();
    let runtime = crate::workers()?;
    let bare = Arc::new(runtime.block_on(Bare::connect(&url))?);
    let rslock = LockManager::new(vec![url.clone()]);
    let client = runtime.block_on(tenure::connect(&url))?;
    let recording = Recording::of(&runtime, &client, cluster.node())?;
    let same = |number| recording.on(&bare.connection, &format!("same{number}"));
    let same: Vec<Replay> = (0..tasks).map(same).collect();
    let plain = runtime.block_on(tenure::connect(&format!("{url}?layout=plain")))?;
    let runtime = &runtime;
    let subjects = vec![
        subject("the two scripts of tenure, bare", runtime, tasks, move |number| {
            let mut same = same[number].clone();
            Box::pin(async move { same.once().await })
        }),
        subject("SET NX and compare-and-delete, bare", runtime, tasks, move |number| {
            let bare = bare.clone();
            Box::pin(async move { bare.string(number).await })
        }),
        subject("rslock", runtime, tasks, move |number| rslock_cycle(&rslock, number)),
        subject("tenure", runtime, tasks, move |number| cycle(&client, number)),
        subject("tenure, layout=plain", runtime, tasks, move |number| {
            cycle(&plain, number + tasks)
        }),
    ];
    Comparison::run(rounds, repeat, subjects)
}

pub(crate) fn compare_five(rounds: usize) -> Result<Comparison> {
    let cluster = servers(Topology::Redis5)?;
    let runtime = crate::workers()?;
    let nodes = cluster.nodes().iter();
    let rslock = LockManager::new(nodes.map(tenure_servers::Node::url).collect());
    // The nodes have just been started: there are no locks that they could have lost.
    let url = cluster.url() + "?nodes=durable";
    let client = runtime.block_on(tenure::connect(&url))?;
    let runtime = &runtime;
    let subjects = vec![
        subject("rslock on five", runtime, 1, move |number| rslock_cycle(&rslock, number)),
        subject("tenure on five, with tokens", runtime, 1, move |number| cycle(&client, number)),
    ];
    Comparison::run(rounds, 1, subjects)
}

/// A subject whose turn is one cycle in each of these tasks, each on its own key.
fn subject<'a>(
    name: &'static str,
    runtime: &'a Runtime,
    tasks: usize,
    cycle: impl Fn(usize) -> BoxFuture<'static, Result<()>> + 'a,
) -> (&'static str, Turn<'a>) {
    let turn = move || {
        // A single task is spawned too, because a service's code runs in tasks.
        let running: Vec<_> = (0..tasks).map(|number| runtime.spawn(cycle(number))).collect();
        runtime.block_on(async { try_join_all(running).await?.into_iter().collect() })
    };
    (name, Box::new(turn))
}

fn cycle(client: &Client, number: usize) -> BoxFuture<'static, Result<()>> {
    let lock = client.lock(format!("k{number}"));
    Box::pin(async move { Ok(lock.acquire().await?.release().await?) })
}

fn rslock_cycle(manager: &LockManager, number: usize) -> BoxFuture<'static, Result<()>> {
    let manager = manager.clone();
    Box::pin(async move {
        let lock = manager.lock(format!("rslock{number}").as_bytes(), TTL).await?;
        manager.unlock(&lock).await;
        Ok(())
    })
}

/// A client with only the requests of the comparison.
struct Bare {
    connection: MultiplexedConnection,
    delete: Script,
}

impl Bare {
    async fn connect(url: &str) -> Result<Bare> {
        let client = ::redis::Client::open(format!("{url}?protocol=resp3"))?;
        Ok(Bare {
            connection: client.get_multiplexed_async_connection().await?,
            delete: Script::new(
                "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                 return redis.call('DEL', KEYS[1]) else return 0 end",
            ),
        })
    }

    /// The requests of the simplest lock.
    async fn string(&self, number: usize) -> Result<()> {
        let mut connection = self.connection.clone();
        let key = format!("string{number}");
        let mut set = ::redis::cmd("SET");
        set.arg(&key).arg("me").arg("NX").arg("PX").arg(TTL.as_millis() as u64);
        set.exec_async(&mut connection).await?;
        self.delete.key(&key).arg("me").invoke_async::<()>(&mut connection).await?;
        Ok(())
    }
}
