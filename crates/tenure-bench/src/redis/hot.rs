//! One hot key on Redis, and a growing number of waiters.

use anyhow::{Context, Result};
use tenure_servers::{Node, Topology};

use super::servers;
use crate::figures::Table;
use crate::hot::{Contention, Group, measure};
use crate::peer::{NODE_REDLOCK, REDIS_PY, REDISSON, REDSYNC, own};
use crate::warm::{Plan, SCRIPTS, SET_AND_SCRIPTS, Server};

/// The commands of a bare client.
const STRINGS: &[&str] = &["set", "del"];
/// Processes, tasks in each, and how long the lock is held in ms.
const SETTINGS: [(usize, usize, u64); 4] = [(8, 1, 0), (8, 1, 5), (1, 64, 0), (1, 64, 5)];

/// Contenders that all want one lock: 8 processes, and 64 tasks of one process.
pub(crate) fn compare(plan: Plan) -> Result<Vec<Table>> {
    let cluster = servers(Topology::Redis)?;
    let server = Server::redis(cluster.node())?;
    let mut tables = Vec::new();
    let mut groups = Vec::new();
    let mut started = 0;
    for (processes, tasks, hold_ms) in SETTINGS {
        if processes != started {
            // Those of the last setting end first.
            groups.clear();
            groups = all(cluster.node(), plan, processes);
            started = processes;
        }
        let (count, who) = if tasks > 1 { (tasks, "tasks") } else { (processes, "processes") };
        let about = format!("Redis, one hot key: {count} {who}, each holds it for {hold_ms} ms");
        let contention = Contention { tasks, hold_ms };
        let name = format!("redis-hot-{count}-{hold_ms}ms");
        let rounds = plan.turns().min(3);
        tables.push(measure(name, about, contention, rounds, &server, &mut groups)?);
    }
    Ok(tables)
}

/// tenure alone, with 1 to 1,000 waiters in one process.
pub(crate) fn compare_waiters(plan: Plan) -> Result<Vec<Table>> {
    let cluster = servers(Topology::Redis)?;
    let server = Server::redis(cluster.node())?;
    let group = |waiters: usize| Group {
        tasks: Some(waiters + 1),
        ..group(&format!("tenure, {waiters} waiting"), SCRIPTS, 1, || own(cluster.node(), "tenure"))
    };
    let mut groups: Vec<Group> = [1, 10, 100, 1000].map(group).into();
    let contention = Contention { tasks: 0, hold_ms: 0 };
    let about = "Redis, one key: a handoff with 1 to 1,000 waiters";
    let rounds = plan.turns().min(5);
    Ok(vec![measure("redis-waiters", about, contention, rounds, &server, &mut groups)?])
}

fn all(node: &Node, plan: Plan, processes: usize) -> Vec<Group> {
    let one = |name, requests, kind: &str| group(name, requests, processes, || own(node, kind));
    let mut groups = vec![
        one("bare redis-rs, SET NX again every ms", STRINGS, "bare"),
        one("tenure", SCRIPTS, "tenure"),
        one("tenure, order=barging", SCRIPTS, "tenure-barging"),
        one("rslock", SET_AND_SCRIPTS, "rslock"),
    ];
    if plan.peers {
        let peers = [
            ("redsync", &REDSYNC, "", SET_AND_SCRIPTS),
            ("Redisson RLock", &REDISSON, "lock", SCRIPTS),
            ("Redisson fair lock", &REDISSON, "fair", SCRIPTS),
            ("redis-py", &REDIS_PY, "", SET_AND_SCRIPTS),
            ("node-redlock", &NODE_REDLOCK, "", SCRIPTS),
        ];
        for (name, recipe, kind, requests) in peers {
            groups.push(group(name, requests, processes, || {
                recipe.start(node, kind).with_context(|| format!("could not get {name}"))
            }));
        }
    }
    groups
}

fn group(
    name: &str,
    requests: &'static [&'static str],
    processes: usize,
    start: impl Fn() -> Result<crate::peer::Process>,
) -> Group {
    let processes = (0..processes).map(|_| start()).collect();
    Group { name: name.to_owned(), processes, requests, tasks: None }
}
