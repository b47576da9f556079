//! The stores that the cases run against: one row each.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Result;
use futures_util::future::BoxFuture;
use tenure::Config;
use tenure::backend::Backend;
use tenure::backends::Memory;
use tenure::layers::{Retry, Timeout};
use tenure_servers::wire::mysql::Mysql;
use tenure_servers::{Cluster, Node, Topology};

use crate::context::Store;
use crate::fault::{Faults, Faulty};

/// A store that can be started, or the reason why it cannot be had here.
pub struct Fixture {
    /// The first part of the names of its trials.
    pub name: &'static str,
    /// Starts it, once per case.
    pub start: fn() -> BoxFuture<'static, Result<Store>>,
}

/// Every fixture.
pub fn all() -> Vec<Fixture> {
    vec![
        fixture("memory", || Box::pin(async { memory(|memory| memory) })),
        fixture("memory+retry", || Box::pin(async { memory(retry) })),
        fixture("memory+timeout", || Box::pin(async { memory(timeout) })),
        fixture("memory+slow", || Box::pin(async { memory(slow) })),
        fixture("memory+flaky", || Box::pin(async { memory(flaky) })),
        fixture("postgres", || Box::pin(postgres("lease"))),
        fixture("postgres-session", || Box::pin(postgres("session"))),
        fixture("postgres-row", || Box::pin(postgres("row"))),
        fixture("mysql", || Box::pin(mariadb("lease"))),
        fixture("mysql-session", || Box::pin(mariadb("session"))),
        fixture("mysql-row", || Box::pin(mariadb("row"))),
        fixture("mysql-oracle", || Box::pin(mysql_of_oracle("lease"))),
        fixture("mysql-oracle-session", || Box::pin(mysql_of_oracle("session"))),
        fixture("mysql-oracle-row", || Box::pin(mysql_of_oracle("row"))),
        fixture("sqlite", || Box::pin(sqlite())),
        fixture("redis", || Box::pin(server(Topology::Redis, ""))),
        fixture("redis-barging", || Box::pin(server(Topology::Redis, "order=barging"))),
        fixture("redis-cluster", || Box::pin(server(Topology::RedisCluster, ""))),
        fixture("redis-plain", || Box::pin(server(Topology::Redis, "layout=plain"))),
        fixture("redis-sentinel", || Box::pin(server(Topology::RedisSentinel, ""))),
        fixture("redlock", || Box::pin(server(Topology::Redis5, "nodes=durable&response=2s"))),
        fixture("etcd", || Box::pin(server(Topology::Etcd, ""))),
        fixture("etcd3", || Box::pin(server(Topology::Etcd3, ""))),
        fixture("zookeeper", || Box::pin(server(Topology::Zookeeper, "session=3s"))),
        fixture("zookeeper-ephemeral", || {
            Box::pin(server(Topology::Zookeeper, "session=3s&layout=ephemeral"))
        }),
        fixture("zookeeper3", || Box::pin(server(Topology::Zookeeper3, "session=3s"))),
        // The servers allow one second; three leave time for responses while processes race.
        fixture("consul", || Box::pin(server(Topology::Consul, "min_ttl=3s"))),
        fixture("consul3", || Box::pin(server(Topology::Consul3, "min_ttl=3s"))),
    ]
}

fn fixture(name: &'static str, start: fn() -> BoxFuture<'static, Result<Store>>) -> Fixture {
    Fixture { name, start }
}

fn memory<B: Backend>(wrap: fn(Memory) -> B) -> Result<Store> {
    let memory = Memory::new();
    let open = move || {
        let backend: Arc<dyn Backend> = Arc::new(wrap(memory.clone()));
        Box::pin(async move { Ok(backend) }) as BoxFuture<'static, _>
    };
    Ok(Store { open: Box::new(open), url: None, ports: Vec::new(), keep: Box::new(()) })
}

fn retry(memory: Memory) -> impl Backend {
    Retry::new(memory, 3, Duration::from_millis(5))
}

fn timeout(memory: Memory) -> impl Backend {
    Timeout::new(memory, Duration::from_secs(5))
}

/// Every call is slow, before and after it takes effect: every await point is real.
fn slow(memory: Memory) -> impl Backend {
    Faulty::new(memory, Faults { delay: Duration::from_millis(2), ..Faults::default() })
}

/// Of five requests or renewals one does not arrive and one gets no response, and no hint comes.
fn flaky(memory: Memory) -> impl Backend {
    let faults = Faults { lose_every: 5, hints: false, ..Faults::default() };
    Retry::new(Faulty::new(memory, faults), 30, Duration::from_millis(1))
}

async fn sqlite() -> Result<Store> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite://{}/locks.db", folder.path().display());
    by_url(url, Vec::new(), folder)
}

/// A real server, one for all cases of this process: their keys keep them apart.
async fn server(topology: Topology, options: &'static str) -> Result<Store> {
    let cluster = tokio::task::spawn_blocking(move || tenure_servers::shared(topology)).await??;
    // Sentinels and members of a Redis Cluster name the addresses of others themselves.
    let ports = match topology {
        Topology::RedisCluster | Topology::RedisSentinel => Vec::new(),
        _ => cluster.members().map(Node::port).collect(),
    };
    by_url(cluster.url_with(options), ports, ())
}

/// A server of its own for each mode.
type Servers = [OnceLock<tenure_servers::Result<Cluster>>; 3];

/// The races of all three modes at once need many connections.
async fn postgres(mode: &'static str) -> Result<Store> {
    static SERVERS: Servers = [const { OnceLock::new() }; 3];
    let cluster = of_mode(&SERVERS, Topology::Postgres, mode).await?;
    let ports = vec![cluster.node().port()];
    by_url(format!("{}?mode={mode}&rows=110", cluster.url()), ports, ())
}

/// Where many waiters are woken at once, a `KILL QUERY` of MariaDB can take seconds, and no client
/// can connect meanwhile. The cases of one mode do that, and those of another must not wait for it.
async fn mariadb(mode: &'static str) -> Result<Store> {
    static SERVERS: Servers = [const { OnceLock::new() }; 3];
    mysql(of_mode(&SERVERS, Topology::Mariadb, mode).await?, mode)
}

/// The MySQL of Oracle, one server for all modes: starting it takes long.
async fn mysql_of_oracle(mode: &'static str) -> Result<Store> {
    let start = || tenure_servers::shared(Topology::Mysql);
    mysql(tokio::task::spawn_blocking(start).await??, mode)
}

/// The cases open more clients at once than a server of its default size lets in, and change so
/// much that with its small log they would wait for a busy disk.
fn mysql(cluster: &'static Cluster, mode: &'static str) -> Result<Store> {
    let mut admin = Mysql::admin(cluster.node())?;
    admin.query("SET GLOBAL max_connections=1000")?;
    // MariaDB before 10.9 cannot change it while it runs; the other one has another name for it.
    admin.query("SET GLOBAL innodb_log_file_size=67108864").ok();
    admin.query("SET GLOBAL innodb_redo_log_capacity=67108864").ok();
    let options = if mode == "row" { "&connections=150" } else { "" };
    by_url(format!("{}?mode={mode}{options}", cluster.url()), vec![cluster.node().port()], ())
}

/// The server of this mode, started at its first use.
async fn of_mode(
    servers: &'static Servers,
    topology: Topology,
    mode: &'static str,
) -> Result<&'static Cluster> {
    let server = &servers[["lease", "session", "row"].iter().position(|m| *m == mode).unwrap_or(0)];
    let start = move || tenure_servers::start(topology, &tenure_servers::Options::default());
    let started = tokio::task::spawn_blocking(move || server.get_or_init(start)).await?;
    Ok(started.as_ref().map_err(Clone::clone)?)
}

fn by_url(url: String, ports: Vec<u16>, keep: impl Send + Sync + 'static) -> Result<Store> {
    let config: Config = url.parse()?;
    let open = move || Box::pin(config.open()) as BoxFuture<'static, _>;
    Ok(Store { open: Box::new(open), url: Some(url), ports, keep: Box::new(keep) })
}
