//! Measures the Redis backends against the bare client on the same server, for `docs/backends`.
//! `cargo run --release -p tenure-conformance --example redis_figures`

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tenure::Client;
use tenure_servers::{Durability, Options, Topology, start};

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::default().durability(Durability::Memory);
    let one = start(Topology::Redis, &options)?;
    let port = one.node().port();
    for round in 1..=3 {
        println!("round {round}");
        for tasks in [1, 64] {
            bare(port, tasks).await?;
            same_scripts(port, tasks).await?;
            cycles(&format!("tenure, {tasks} tasks"), &one.url(), tasks).await?;
            cycles(&format!("tenure plain, {tasks} tasks"), &(one.url() + "?layout=plain"), tasks)
                .await?;
        }
        for waiters in [2, 16, 64] {
            hand_overs(&one.url(), waiters).await?;
        }
    }
    let five = start(Topology::Redis5, &options)?;
    cycles("redlock, 1 task", &(five.url() + "?nodes=durable"), 1).await?;
    cycles("redlock, 64 tasks", &(five.url() + "?nodes=durable&response=1s"), 64).await?;
    Ok(())
}

/// SET NX PX and compare-and-delete, as the simplest lock would do it.
async fn bare(port: u16, tasks: usize) -> Result<()> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let connection = client.get_multiplexed_async_connection().await?;
    let script = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) \
                  else return 0 end";
    let script = Arc::new(redis::Script::new(script));
    measure(&format!("bare client, {tasks} tasks"), tasks, |number| {
        let (mut connection, script) = (connection.clone(), script.clone());
        async move {
            let key = format!("bare{number}");
            let mut set = redis::cmd("SET");
            set.arg(&key).arg("x").arg("NX").arg("PX").arg(30_000);
            set.exec_async(&mut connection).await?;
            script.key(&key).arg("x").invoke_async::<()>(&mut connection).await?;
            Ok(())
        }
    })
    .await
}

/// What tenure asks of the server, asked by the bare client.
async fn same_scripts(port: u16, tasks: usize) -> Result<()> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}?protocol=resp3"))?;
    let connection = client.get_multiplexed_async_connection().await?;
    let source = |own: &str| {
        let layout = include_str!("../../tenure/src/backends/redis/lua/redisson.lua");
        let common = include_str!("../../tenure/src/backends/redis/lua/common.lua");
        Arc::new(redis::Script::new(&[layout, common, own].join("\n")))
    };
    let take = source(include_str!("../../tenure/src/backends/redis/lua/take.lua"));
    let release = source(include_str!("../../tenure/src/backends/redis/lua/release.lua"));
    measure(&format!("same scripts by the bare client, {tasks} tasks"), tasks, |number| {
        let (mut connection, take, release) = (connection.clone(), take.clone(), release.clone());
        async move {
            let (name, owner) = (format!("same{number}"), "0aa1dbd8-6d52-4b6f-a5d8-0b0d9ab0f6a4:1");
            let own = |kind: &str| format!("tenure:{kind}:{{{name}}}");
            let channel = format!("redisson_lock__channel:{{{name}}}");
            let keys = [name.clone(), own("s"), own("q"), own("w"), own("x") + owner];
            let common = ["PUBLISH", "tenure:c:", &channel, "3600000", "16", "5", owner];
            let mut call = take.prepare_invoke();
            call.key(&keys).arg(&common).arg(30_000).arg(10_000).arg("a\tb\t1\t");
            call.invoke_async::<redis::Value>(&mut connection).await?;
            let mut call = release.prepare_invoke();
            call.key(&keys).arg(&common).arg(0);
            call.invoke_async::<redis::Value>(&mut connection).await?;
            Ok(())
        }
    })
    .await
}

async fn cycles(name: &str, url: &str, tasks: usize) -> Result<()> {
    let client = tenure::connect(url).await?;
    measure(name, tasks, |number| {
        let lock = client.lock(format!("k{number}"));
        async move { Ok(lock.acquire().await?.release().await?) }
    })
    .await
}

/// Repeats a cycle in this many tasks, each on its own key, for a while.
async fn measure<F, Fut>(name: &str, tasks: usize, cycle: F) -> Result<()>
where
    F: Fn(usize) -> Fut,
    Fut: Future<Output = Result<()>> + Send + 'static,
{
    cycle(0).await?;
    let (start, mut done, mut times) = (Instant::now(), 0_u32, Vec::new());
    while start.elapsed() < Duration::from_secs(2) {
        let one = Instant::now();
        let mut running = tokio::task::JoinSet::new();
        (0..tasks).for_each(|number| drop(running.spawn(cycle(number))));
        while let Some(ended) = running.join_next().await {
            ended??;
            done += 1;
        }
        times.push(one.elapsed());
    }
    let rate = f64::from(done) / start.elapsed().as_secs_f64();
    times.sort();
    println!("  {name}: {rate:.0} cycles/s, median {:?}", times[times.len() / 2]);
    Ok(())
}

/// So many clients pass one lock on, each with connections of its own.
async fn hand_overs(url: &str, waiters: usize) -> Result<()> {
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..waiters {
        clients.push(tenure::connect(url).await?);
    }
    let end = Instant::now() + Duration::from_secs(2);
    let mut tasks = tokio::task::JoinSet::new();
    for client in clients {
        tasks.spawn(async move {
            let (lock, mut rounds) = (client.lock("handed over"), 0_u32);
            while Instant::now() < end {
                lock.acquire().await?.release().await?;
                rounds += 1;
            }
            anyhow::Ok(rounds)
        });
    }
    let mut total = 0;
    while let Some(rounds) = tasks.join_next().await {
        total += rounds??;
    }
    println!("  {waiters} clients pass one lock on: {} hand-overs/s", total / 2);
    Ok(())
}
