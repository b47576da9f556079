//! etcd: what a lock costs compared with the two transactions that it needs at least, and with the
//! server's own lock service; and what many held locks cost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use prost::{Message, Oneof};
use tenure::Config;
use tenure::backends::Etcd;
use tenure_servers::{Options, Topology, start};
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::compare::{Comparison, Fact};
use crate::cycle::{by_backend, by_client};
use crate::figures::Table;
use crate::hot;
use crate::peer::ETCD;
use crate::warm::{Cycle, Entry, FEW, Own, Plan, Server, of_tenure, one_and_many};

const HELD: u32 = 10_000;
/// The key of the two transactions.
const TWO: &[u8] = b"two/transactions";

pub(crate) fn compare(rounds: usize) -> Result<Comparison> {
    let cluster = start(Topology::Etcd, &Options::default())?;
    let runtime = crate::runtime()?;
    let bare = runtime.block_on(Bare::connect(&cluster.node().address()))?;
    let config: Config = cluster.url().parse()?;
    let backend = runtime.block_on(config.open())?;
    let client = runtime.block_on(tenure::connect(&cluster.url()))?;
    Comparison::run(
        rounds,
        1,
        vec![
            ("two transactions, bare", Box::new(|| runtime.block_on(bare.put_and_delete(TWO)))),
            ("etcd's lock service", Box::new(|| runtime.block_on(bare.lock_and_unlock()))),
            ("etcd backend: acquire, release", by_backend(&runtime, &*backend)),
            ("tenure: acquire, release", by_client(&runtime, &client)),
        ],
    )
}

/// A warm loop, and one hot key.
pub(crate) fn compare_warm(plan: Plan) -> Result<Vec<Table>> {
    let cluster = start(Topology::Etcd, &Options::default())?;
    let node = cluster.node();
    let runtime = crate::workers()?;
    let bare = Arc::new(runtime.block_on(Bare::connect(&node.address()))?);
    let two = |number| Two(bare.clone(), format!("two/{number}").into_bytes());
    let mut entries = vec![Entry::new("two transactions, bare", Own::new(&runtime, FEW, two))];
    entries.extend(of_tenure(&runtime, &cluster.url(), FEW)?);
    let peers = [("concurrency.Mutex (Go)", &ETCD)];
    for (name, recipe) in peers.iter().filter(|_| plan.peers) {
        entries.push(recipe.entry(name, node, ""));
    }
    let server = Server::new(node)?;
    let mut tables = one_and_many("etcd-warm", "etcd", (plan, FEW), &server, &mut entries)?;
    tables.push(hot::compare_tasks("etcd", plan, node, &peers)?);
    Ok(tables)
}

/// The two transactions on one key.
struct Two(Arc<Bare>, Vec<u8>);

impl Cycle for Two {
    async fn once(&mut self) -> Result<()> {
        self.0.put_and_delete(&self.1).await
    }
}

/// A write of the application, without and with the condition that the lock is still held.
pub(crate) fn compare_condition(rounds: usize) -> Result<Comparison> {
    let cluster = start(Topology::Etcd, &Options::default())?;
    let runtime = crate::runtime()?;
    let bare = runtime.block_on(Bare::connect(&cluster.node().address()))?;
    let client = runtime.block_on(tenure::connect(&cluster.url()))?;
    let guard = runtime.block_on(client.lock("stock/42").acquire())?;
    let condition = runtime.block_on(async {
        let etcd = Etcd::open(&cluster.url()).await?;
        etcd.condition(guard.key(), guard.token()).await
    })?;
    let condition = condition.context("it is held")?;
    let created = With::Created(condition.create_revision);
    let held = Compare { target: 1, key: condition.key, with: Some(created) };
    Comparison::run(
        rounds,
        1,
        vec![
            ("etcd: put", Box::new(|| runtime.block_on(bare.put(Vec::new())))),
            (
                "etcd: put, if the lock is held",
                Box::new(|| runtime.block_on(bare.put(vec![held.clone()]))),
            ),
        ],
    )
}

/// Measures many held locks, which are renewed by one stream and few leases.
pub(crate) fn measure_held(_rounds: usize) -> Result<Comparison> {
    let cluster = start(Topology::Etcd, &Options::default())?;
    let port = cluster.node().port();
    let runtime = crate::runtime()?;
    let client = runtime.block_on(tenure::connect(&cluster.url()))?;
    let took = Instant::now();
    let guards = runtime.block_on(async {
        let mut guards = Vec::new();
        for number in 0..HELD {
            guards.push(client.lock(format!("held/{number}")).acquire().await?);
        }
        Ok::<_, tenure::Error>(guards)
    })?;
    let took = took.elapsed();
    let start = Instant::now();
    let before = keep_alives(port)?;
    std::thread::sleep(Duration::from_secs(30));
    let count = keep_alives(port)? - before;
    anyhow::ensure!(guards.iter().all(|guard| guard.check().is_ok()), "a lock was lost");
    drop(guards);
    runtime.block_on(client.flush())?;
    let fact = |name: &str, value: f64, unit| Fact { name: name.to_owned(), value, unit };
    Ok(Comparison::of_facts(vec![
        fact("locks acquired one after the other", f64::from(HELD) / took.as_secs_f64(), "1/s"),
        fact("keep-alives for all of them", count / start.elapsed().as_secs_f64(), "1/s"),
    ]))
}

/// How many keep-alives the server has received.
fn keep_alives(port: u16) -> Result<f64> {
    let text = tenure_servers::wire::http::get(port, "/metrics")?;
    let received = |line: &&str| {
        line.starts_with("grpc_server_msg_received_total{") && line.contains("LeaseKeepAlive")
    };
    let line = text.lines().find(received).context("etcd counts no keep-alives")?;
    Ok(line.rsplit(' ').next().unwrap_or_default().parse()?)
}

/// A client with only the requests of the comparison.
struct Bare {
    channel: Channel,
    lease: i64,
}

impl Bare {
    async fn connect(address: &str) -> Result<Bare> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
        let mut bare = Bare { channel, lease: 0 };
        let granted: Lease =
            bare.call("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl: 600 }).await?;
        bare.lease = granted.id;
        Ok(bare)
    }

    async fn put(&self, compare: Vec<Compare>) -> Result<()> {
        let put = Put { key: b"data/42".to_vec(), lease: 0 };
        let request = Txn { compare, success: vec![Op { op: Some(Ops::Put(put)) }] };
        let response: TxnResponse = self.call("/etcdserverpb.KV/Txn", request).await?;
        anyhow::ensure!(response.succeeded, "the lock is lost");
        Ok(())
    }

    async fn put_and_delete(&self, key: &[u8]) -> Result<()> {
        let key = key.to_vec();
        let absent = Compare { target: 1, key: key.clone(), with: Some(With::Created(0)) };
        let put = Put { key: key.clone(), lease: self.lease };
        let request = Txn { compare: vec![absent], success: vec![Op { op: Some(Ops::Put(put)) }] };
        let response: TxnResponse = self.call("/etcdserverpb.KV/Txn", request).await?;
        anyhow::ensure!(response.succeeded, "the key is there already");
        let _deleted: Nothing = self.call("/etcdserverpb.KV/DeleteRange", One { key }).await?;
        Ok(())
    }

    async fn lock_and_unlock(&self) -> Result<()> {
        let request = Lock { name: b"service".to_vec(), lease: self.lease };
        let locked: Locked = self.call("/v3lockpb.Lock/Lock", request).await?;
        let _unlocked: Nothing =
            self.call("/v3lockpb.Lock/Unlock", One { key: locked.key }).await?;
        Ok(())
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.context("the server is not ready")?;
        let codec = ProstCodec::<Q, A>::default();
        let path = PathAndQuery::from_static(path);
        Ok(grpc.unary(Request::new(request), path, codec).await?.into_inner())
    }
}

#[derive(Clone, PartialEq, Message)]
struct Nothing {}

#[derive(Clone, PartialEq, Message)]
struct One {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Lease {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Lock {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Locked {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Compare {
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(oneof = "With", tags = "5")]
    with: Option<With>,
}

#[derive(Clone, PartialEq, Oneof)]
enum With {
    #[prost(int64, tag = "5")]
    Created(i64),
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Op {
    #[prost(oneof = "Ops", tags = "2")]
    op: Option<Ops>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Ops {
    #[prost(message, tag = "2")]
    Put(Put),
}

#[derive(Clone, PartialEq, Message)]
struct Txn {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<Op>,
}

#[derive(Clone, PartialEq, Message)]
struct TxnResponse {
    #[prost(bool, tag = "2")]
    succeeded: bool,
}
