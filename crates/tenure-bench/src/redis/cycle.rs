//! Acquire and release: one task, and 64 tasks on 64 keys.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Script, Value};
use anyhow::Result;
use futures_util::future::{BoxFuture, try_join_all};
use rslock::LockManager;
use tenure::Client;
use tenure_servers::Topology;
use tokio::runtime::Runtime;

use super::servers;
use crate::compare::{Comparison, Turn};

const TTL: Duration = Duration::from_secs(30);

pub(crate) fn compare_one_task(rounds: usize) -> Result<Comparison> {
    compare(rounds, 4, 1)
}

pub(crate) fn compare_many_tasks(rounds: usize) -> Result<Comparison> {
    compare(rounds.div_ceil(4), 1, 64)
}

fn compare(rounds: usize, repeat: u32, tasks: usize) -> Result<Comparison> {
    let cluster = servers(Topology::Redis)?;
    let url = cluster.url();
    let runtime = runtime()?;
    let bare = Arc::new(runtime.block_on(Bare::connect(&url))?);
    let rslock = LockManager::new(vec![url.clone()]);
    let client = runtime.block_on(tenure::connect(&url))?;
    let plain = runtime.block_on(tenure::connect(&format!("{url}?layout=plain")))?;
    let runtime = &runtime;
    let other = bare.clone();
    let subjects = vec![
        subject("the two scripts of tenure, bare", runtime, tasks, move |number| {
            let bare = bare.clone();
            Box::pin(async move { bare.same_scripts(number).await })
        }),
        subject("SET NX and compare-and-delete, bare", runtime, tasks, move |number| {
            let bare = other.clone();
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
    let runtime = runtime()?;
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

/// The kind of runtime that most services use.
fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
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
    acquire: Script,
    release: Script,
    delete: Script,
}

impl Bare {
    async fn connect(url: &str) -> Result<Bare> {
        let client = ::redis::Client::open(format!("{url}?protocol=resp3"))?;
        let script = |own: &str| {
            let layout = include_str!("../../../tenure/src/backends/redis/lua/redisson.lua");
            let common = include_str!("../../../tenure/src/backends/redis/lua/common.lua");
            Script::new(&[layout, common, own].join("\n"))
        };
        Ok(Bare {
            connection: client.get_multiplexed_async_connection().await?,
            acquire: script(include_str!("../../../tenure/src/backends/redis/lua/acquire.lua")),
            release: script(include_str!("../../../tenure/src/backends/redis/lua/release.lua")),
            delete: Script::new(
                "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                 return redis.call('DEL', KEYS[1]) else return 0 end",
            ),
        })
    }

    /// The requests of tenure.
    async fn same_scripts(&self, number: usize) -> Result<()> {
        let name = format!("same{number}");
        let owner = "0aa1dbd8-6d52-4b6f-a5d8-0b0d9ab0f6a4:1";
        let own = |kind: &str| format!("tenure:{kind}:{{{name}}}");
        let channel = format!("redisson_lock__channel:{{{name}}}");
        let keys = [name.clone(), own("s"), own("q"), own("w"), own("x") + ":" + owner];
        let common = ["PUBLISH", "tenure:c:", &channel, "3600000", "16", "5", owner];
        let mut connection = self.connection.clone();
        let mut call = self.acquire.prepare_invoke();
        call.key(&keys).arg(&common).arg(30_000).arg(10_000).arg("program\tmachine\t1\t");
        call.invoke_async::<Value>(&mut connection).await?;
        let mut call = self.release.prepare_invoke();
        call.key(&keys).arg(&common).arg(0);
        anyhow::ensure!(call.invoke_async::<i64>(&mut connection).await? == 2, "it was not held");
        Ok(())
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
