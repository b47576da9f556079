//! Fences in every store: what they promise, and the experiment that shows what they are for.
//! `cargo test -p tenure-conformance --test fence -- redis` runs those of one store.

#![expect(clippy::unwrap_used, reason = "a case that panics fails")]

mod column;
mod conditions;
mod deleted;
mod durability;
mod experiment;
mod forgetting;
mod grants;
mod http_layer;
mod interruptions;
mod lock_waits;
mod names;
mod not_a_token;
mod promises;
mod readers;
mod redis_operations;
mod registers;
mod row_locks;
mod sqlx_example;
mod upgrade;
mod worker;

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Result;
use futures_util::future::BoxFuture;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tenure_servers::{Topology, require, shared};

const STORES: [Store; 12] = [
    Store { name: "consul", topology: Some(Topology::Consul) },
    Store { name: "etcd", topology: Some(Topology::Etcd) },
    Store { name: "file", topology: None },
    Store { name: "http", topology: None },
    Store { name: "memory", topology: None },
    Store { name: "mysql", topology: Some(Topology::Mariadb) },
    Store { name: "postgres", topology: Some(Topology::Postgres) },
    Store { name: "redis", topology: Some(Topology::Redis) },
    Store { name: "sqlite", topology: None },
    Store { name: "sqlx-mysql", topology: Some(Topology::Mariadb) },
    Store { name: "sqlx-postgres", topology: Some(Topology::Postgres) },
    Store { name: "zookeeper", topology: Some(Topology::Zookeeper) },
];
/// The stores that compare tokens. In the others the lock itself is the fence.
pub(crate) const EVERY: &[&str] =
    &["file", "http", "mysql", "postgres", "redis", "sqlite", "sqlx-mysql", "sqlx-postgres"];
/// Those, and the fence of this process, which has no store to lose.
pub(crate) const READERS: &[&str] = &[
    "file",
    "http",
    "memory",
    "mysql",
    "postgres",
    "redis",
    "sqlite",
    "sqlx-mysql",
    "sqlx-postgres",
];
/// The stores whose fence can be lost, or overwritten by another program.
pub(crate) const KEPT: &[&str] =
    &["file", "mysql", "postgres", "redis", "sqlite", "sqlx-mysql", "sqlx-postgres"];

/// Above what any case should take, on a busy machine.
const LONGEST: Duration = Duration::from_secs(240);

fn main() {
    if worker::run_if_started_as_one() {
        return;
    }
    let mut arguments = Arguments::from_args();
    // An experiment keeps both cores busy by itself.
    arguments.test_threads.get_or_insert(2);
    let all = [
        promises::CASES,
        readers::CASES,
        upgrade::CASES,
        column::CASES,
        conditions::CASES,
        deleted::CASES,
        durability::CASES,
        forgetting::CASES,
        http_layer::CASES,
        interruptions::CASES,
        names::CASES,
        not_a_token::CASES,
        redis_operations::CASES,
        row_locks::CASES,
        sqlx_example::CASES,
        experiment::CASES,
    ];
    let mut trials = Vec::new();
    for store in STORES {
        let fitting = all.concat().into_iter().filter(|case| case.stores.contains(&store.name));
        trials.extend(fitting.map(|case| trial(store, case)));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// Where a resource is kept.
#[derive(Clone, Copy)]
struct Store {
    name: &'static str,
    topology: Option<Topology>,
}

/// A case, and the stores it is for. It is given the URL of the store.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) stores: &'static [&'static str],
    pub(crate) run: fn(String) -> BoxFuture<'static, Result<()>>,
}

/// The rows of a module.
macro_rules! cases {
    ($($name:ident on $stores:expr;)+) => {
        pub(crate) const CASES: &[crate::Case] = &[$(
            crate::Case {
                name: stringify!($name),
                stores: $stores,
                run: |url| Box::pin($name(url)),
            }
        ),+];
    };
}
pub(crate) use cases;

fn trial(store: Store, case: Case) -> Trial {
    Trial::ignorable_test(format!("{}::{}", store.name, case.name), move || {
        if let Some(topology) = store.topology
            && let Err(error) = shared(topology)
            && error.is_missing()
            && !require(topology.name())
        {
            return Ok(Completion::ignored_with(error));
        }
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().map_err(Failed::from)?;
        let run = async {
            let (url, _folder) = prepare(store).await?;
            (case.run)(url).await
        };
        match runtime.block_on(async { tokio::time::timeout(LONGEST, run).await }) {
            Ok(done) => done.map(|()| Completion::Completed).map_err(|e| format!("{e:?}").into()),
            Err(_) => Err(format!("not done after {LONGEST:?}").into()),
        }
    })
}

/// Starts the store and creates its tables. Returns its URL.
async fn prepare(store: Store) -> Result<(String, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    let url = match (store.name, store.topology) {
        ("file", _) => format!("file://{}", folder.path().display()),
        ("http", _) => registers::serve().await?,
        ("memory", _) => "memory:".to_owned(),
        ("sqlite", _) => format!("sqlite://{}/data.db", folder.path().display()),
        (_, topology) => {
            let topology = topology.unwrap_or(Topology::Redis);
            let url = tokio::task::spawn_blocking(move || shared(topology)).await??.url();
            if store.name.starts_with("sqlx-") { format!("sqlx+{url}") } else { url }
        }
    };
    static PREPARED: OnceLock<tokio::sync::Mutex<()>> = OnceLock::new();
    // Two cases that create the same table at the same moment can fail.
    let _one = PREPARED.get_or_init(Default::default).lock().await;
    registers::prepare(&url).await?;
    Ok((url, folder))
}

/// A name that no other case uses.
pub(crate) fn unique(name: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("{name}-{}-{number}", std::process::id())
}

/// The token of this number.
pub(crate) fn token(number: u64) -> tenure::FencingToken {
    tenure::FencingToken::new(number).unwrap()
}
