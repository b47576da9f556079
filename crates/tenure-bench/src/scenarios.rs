//! All scenarios by name.

use anyhow::Result;

use self::Measure::{Rounds, Tables};
use crate::compare::Comparison;
use crate::figures::Table;
use crate::warm::Plan;
use crate::{consul, embedded, etcd, fence, memory, mysql, postgres, queue, redis, run, zookeeper};

/// Name, what it is about, and how it is measured.
pub(crate) struct Scenario(pub(crate) &'static str, pub(crate) &'static str, Measure);

/// How a scenario is measured.
enum Measure {
    /// Subjects whose executions are timed one by one, in so many rounds.
    Rounds(fn(usize) -> Result<Comparison>),
    /// Subjects with figures of their own.
    Tables(fn(Plan) -> Result<Vec<Table>>),
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario("memory", "acquire + release inside one process", Rounds(memory::compare)),
    Scenario("embedded", "acquire + release on the embedded store", Rounds(embedded::compare)),
    Scenario("etcd", "acquire + release on etcd, one member", Rounds(etcd::compare)),
    Scenario(
        "etcd-held",
        "etcd: 10,000 held locks and their renewals, for half a minute",
        Rounds(etcd::measure_held),
    ),
    Scenario("mysql", "acquire + release on MariaDB, in all modes", Rounds(mysql::compare)),
    Scenario(
        "postgres",
        "acquire + release on PostgreSQL, in all modes",
        Rounds(postgres::compare),
    ),
    Scenario(
        "queue",
        "servers with a queue: one lock goes through 1, 10 and 100 waiters",
        Rounds(queue::compare),
    ),
    Scenario("redis", "acquire + release on Redis, one task", Rounds(redis::compare_one_task)),
    Scenario(
        "redis-64",
        "acquire + release on Redis, 64 tasks on 64 keys, all of them once",
        Rounds(redis::compare_many_tasks),
    ),
    Scenario(
        "redis-hot",
        "Redis: one hot key, 8 processes and 64 tasks, holds of 0 and 5 ms; fairness, peers",
        Tables(redis::compare_hot),
    ),
    Scenario(
        "redis-modes",
        "Redis: a handoff to readers and permits; a writer among 20 readers; Redisson",
        Tables(redis::compare_modes),
    ),
    Scenario(
        "redis-waiters",
        "Redis: one key with 1, 10, 100 and 1,000 waiters",
        Tables(redis::compare_waiters),
    ),
    Scenario(
        "redis-warm",
        "Redis: a warm loop in one task, and in 64 tasks on 64 keys; CPU, allocations, peers",
        Tables(redis::compare_warm),
    ),
    Scenario(
        "redis-queue",
        "Redis: one lock goes round among processes, time for each handoff",
        Rounds(redis::compare_queues),
    ),
    Scenario(
        "redis-held",
        "Redis: 1,000 to 100,000 held locks and their renewals, half a minute each",
        Tables(redis::measure_held),
    ),
    Scenario(
        "redis-held-1m",
        "Redis: a million held locks and their renewals",
        Tables(redis::measure_million),
    ),
    Scenario(
        "redlock",
        "acquire + release on five Redis masters, one task",
        Rounds(redis::compare_five),
    ),
    Scenario(
        "consul",
        "acquire + release in Consul, one development agent",
        Rounds(consul::compare),
    ),
    Scenario(
        "fence-consul",
        "Consul: a write, with and without the condition that the lock is held",
        Rounds(consul::compare_condition),
    ),
    Scenario(
        "fence-etcd",
        "etcd: a write, with and without the condition that the lock is held",
        Rounds(etcd::compare_condition),
    ),
    Scenario(
        "fence-file",
        "a file: replacing it, with and without a fence",
        Rounds(fence::compare_file),
    ),
    Scenario(
        "fence-http",
        "an HTTP service: a request over loopback, with and without the layer",
        Rounds(fence::http::compare),
    ),
    Scenario(
        "fence-memory",
        "a number in memory, with and without a fence",
        Rounds(fence::compare_memory),
    ),
    Scenario(
        "fence-mysql",
        "MariaDB: a write in a transaction, with and without a fence",
        Rounds(fence::compare_mysql),
    ),
    Scenario(
        "fence-postgres",
        "PostgreSQL: a write in a transaction, with and without a fence",
        Rounds(fence::compare_postgres),
    ),
    Scenario(
        "fence-redis",
        "Redis: a write, with and without a fence",
        Rounds(fence::compare_redis),
    ),
    Scenario(
        "fence-sqlite",
        "SQLite: a write in a transaction, with and without a fence",
        Rounds(fence::compare_sqlite),
    ),
    Scenario(
        "fence-zookeeper",
        "ZooKeeper: a write, with and without the condition that the lock is held",
        Rounds(zookeeper::compare_condition),
    ),
    Scenario("run", "a command under a lock, from the shell's point of view", Rounds(run::compare)),
    Scenario("zookeeper", "acquire + release on ZooKeeper, one server", Rounds(zookeeper::compare)),
    Scenario(
        "consul-warm",
        "Consul: a warm loop in one task and in 32 tasks, one hot key; peers",
        Tables(consul::compare_warm),
    ),
    Scenario(
        "etcd-warm",
        "etcd: a warm loop in one task and in 32 tasks, one hot key; peers",
        Tables(etcd::compare_warm),
    ),
    Scenario(
        "zookeeper-warm",
        "ZooKeeper: a warm loop in one task and in 32 tasks, one hot key; peers",
        Tables(zookeeper::compare_warm),
    ),
    Scenario(
        "mysql-warm",
        "MariaDB: a warm loop in one task and in 32 tasks",
        Tables(mysql::compare_warm),
    ),
    Scenario(
        "postgres-warm",
        "PostgreSQL: a warm loop in one task and in 32 tasks, one hot key; pgbench",
        Tables(postgres::compare_warm),
    ),
];

impl Scenario {
    pub(crate) fn tables(&self, plan: Plan) -> Result<Vec<Table>> {
        match self.2 {
            Rounds(compare) => Ok(vec![compare(plan.rounds)?.into_table(self.0, self.1)]),
            Tables(compare) => compare(plan),
        }
    }
}

/// The scenario with this name, or all scenarios of a group such as `fence`.
pub(crate) fn named(name: &str) -> Option<Vec<&'static Scenario>> {
    if let Some(exact) = SCENARIOS.iter().find(|known| known.0 == name) {
        return Some(vec![exact]);
    }
    let group = format!("{name}-");
    let all: Vec<_> = SCENARIOS.iter().filter(|known| known.0.starts_with(&group)).collect();
    (!all.is_empty()).then_some(all)
}
