//! Acquire and release in a warm loop, beside the bare client and other locks.

use ::redis::aio::MultiplexedConnection;
use ::redis::{Script, cmd};
use anyhow::Result;
use rslock::LockManager;
use tenure_servers::Topology;

use super::recording::Recording;
use super::{TTL, servers};
use crate::figures::Table;
use crate::peer::{NODE_REDLOCK, REDIS_PY, REDISSON, REDSYNC, Recipe};
use crate::warm::{
    Cycle, Entry, Own, Plan, SCRIPTS, SET_AND_SCRIPTS, Server, of_tenure, one_and_many,
};

const TASKS: usize = 64;
const NAME: &str = "redis-warm";
/// Locks in other languages: the kind of lock, and the commands that its client sends.
const PEERS: [(&str, &Recipe, &str, &[&str]); 6] = [
    ("redsync (Go)", &REDSYNC, "", SET_AND_SCRIPTS),
    ("Redisson RLock (Java)", &REDISSON, "lock", SCRIPTS),
    ("Redisson RFencedLock (Java)", &REDISSON, "fenced", SCRIPTS),
    ("Redisson fair lock (Java)", &REDISSON, "fair", SCRIPTS),
    ("redis-py (Python)", &REDIS_PY, "", SET_AND_SCRIPTS),
    ("node-redlock (JavaScript)", &NODE_REDLOCK, "", SCRIPTS),
];
/// Deletes the string of a lock if it is still the same.
const DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                      return redis.call('DEL', KEYS[1]) else return 0 end";

pub(crate) fn compare(plan: Plan) -> Result<Vec<Table>> {
    let cluster = servers(Topology::Redis)?;
    let (node, url) = (cluster.node(), cluster.url());
    let server = Server::redis(node)?;
    let runtime = crate::workers()?;
    let client = runtime.block_on(tenure::connect(&url))?;
    let recording = Recording::of(&runtime, &client, node)?;
    let (bare, plain) = runtime.block_on(async {
        let client = ::redis::Client::open(format!("{url}?protocol=resp3"))?;
        let bare = client.get_multiplexed_async_connection().await?;
        anyhow::Ok((bare, client.get_multiplexed_async_connection().await?))
    })?;
    let rslock = LockManager::new(vec![url.clone()]);
    let own = &runtime;
    let [tenure, dropping] = of_tenure(own, &url, TASKS)?;
    let mut entries = vec![
        Entry::new(
            "bare redis-rs, tenure's scripts",
            Own::new(own, TASKS, |number| recording.on(&bare, &format!("bare{number}"))),
        ),
        tenure,
        dropping,
        Entry::new(
            "bare redis-rs, SET NX + compare-and-delete",
            Own::new(own, TASKS, |number| Plain::new(&plain, number)),
        )
        .requests(SET_AND_SCRIPTS),
        Entry::new(
            "rslock",
            Own::new(own, TASKS, |number| Rslock(rslock.clone(), format!("rslock{number}"))),
        )
        .requests(SET_AND_SCRIPTS),
    ];
    if plan.peers {
        for (name, recipe, kind, requests) in PEERS {
            entries.push(recipe.entry(name, node, kind).requests(requests));
        }
    }
    one_and_many(NAME, "Redis", (plan, TASKS), &server, &mut entries)
}

/// The simplest lock: a string.
struct Plain {
    connection: MultiplexedConnection,
    delete: Script,
    key: String,
}

impl Plain {
    fn new(connection: &MultiplexedConnection, number: usize) -> Plain {
        let key = format!("plain{number}");
        Plain { connection: connection.clone(), delete: Script::new(DELETE), key }
    }
}

impl Cycle for Plain {
    async fn once(&mut self) -> Result<()> {
        let mut set = cmd("SET");
        set.arg(&self.key).arg("me").arg("NX").arg("PX").arg(TTL.as_millis() as u64);
        let set: Option<String> = set.query_async(&mut self.connection).await?;
        anyhow::ensure!(set.is_some(), "the lock was not free");
        let mut delete = self.delete.key(&self.key);
        delete.arg("me").invoke_async::<()>(&mut self.connection).await?;
        Ok(())
    }
}

/// Crate `rslock`.
struct Rslock(LockManager, String);

impl Cycle for Rslock {
    async fn once(&mut self) -> Result<()> {
        let lock = self.0.lock(self.1.as_bytes(), TTL).await?;
        self.0.unlock(&lock).await;
        Ok(())
    }
}
