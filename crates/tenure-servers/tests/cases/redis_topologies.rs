//! Several Redis servers: five independent masters, a master with sentinels, a Redis Cluster.

use std::time::Duration;

use libtest_mimic::Trial;
use tenure_servers::wire::redis::{Redis, Value, execute};
use tenure_servers::{Cluster, Options, Role, Topology, wait_until};

use crate::suite::{Done, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let options = Options::default;
    vec![
        trial(Topology::Redis5, "a majority holds while one is dead", options(), majority),
        trial(Topology::Redis5, "one clock of five is shifted", options().clock(), one_clock),
        trial(Topology::RedisSentinel, "a lock survives the master", options(), promotion),
        trial(Topology::RedisCluster, "a killed master keeps its slots", options(), slots),
    ]
}

fn votes(cluster: &Cluster, owner: &str) -> usize {
    let vote = |port| execute(port, &["SET", "lock", owner, "NX", "PX", "10000"]);
    let ok = Value::Text("OK".into());
    cluster
        .nodes()
        .iter()
        .filter(|node| vote(node.port()).is_ok_and(|response| response == ok))
        .count()
}

fn majority(cluster: &Cluster) -> Done {
    assert_eq!(votes(cluster, "a"), 5);
    assert_eq!(votes(cluster, "b"), 0);
    let dead = &cluster.nodes()[2];
    dead.kill()?;
    let alive = cluster.nodes().iter().filter(|node| execute(node.port(), &["PING"]).is_ok());
    assert_eq!(alive.count(), 4);
    dead.restart()?;
    // It kept its vote; otherwise b would get one now.
    assert_eq!(execute(dead.port(), &["GET", "lock"])?, Value::Text("a".into()));
    assert!(cluster.leader()?.is_none());
    assert!(cluster.failover().is_err());
    Ok(())
}

fn one_clock(cluster: &Cluster) -> Done {
    assert_eq!(votes(cluster, "a"), 5);
    cluster.nodes()[4].shift_clock(60_000)?;
    wait_until(Duration::from_secs(5), || match votes(cluster, "c") {
        1 => Ok(()),
        count => Err(format!("c got {count} votes, not that of the node that is ahead")),
    })?;
    Ok(())
}

fn promotion(cluster: &Cluster) -> Done {
    // Not by name: on a machine that stalled for a second the sentinels may have failed over.
    let old = cluster.wait_leader(|_| true)?;
    let mut redis = Redis::connect(old.port())?;
    assert_eq!(redis.command(&["SET", "lock", "a", "NX"])?, Value::Text("OK".into()));
    // Both replicas have it, so that it does not matter which one is promoted.
    assert_eq!(redis.command(&["WAIT", "2", "5000"])?, Value::Int(2));

    old.kill()?;
    let new = cluster.wait_leader(|node| node.name() != old.name())?;
    wait_until(Duration::from_secs(30), || {
        match execute(new.port(), &["SET", "lock", "b", "NX"]) {
            Ok(Value::Nil) => Ok(()),
            other => {
                Err(format!("the new master should accept writes and know the lock: {other:?}"))
            }
        }
    })?;

    old.restart()?;
    // It restarts as a master, until the sentinels reconfigure it.
    cluster.wait_ready()?;
    assert_eq!(execute(old.port(), &["GET", "lock"])?, Value::Text("a".into()));

    let sentinel = cluster.nodes().iter().find(|node| node.role() == Role::Sentinel);
    let sentinel = sentinel.expect("there are three");
    sentinel.kill()?;
    sentinel.restart()?;
    cluster.wait_ready()?;

    let before = cluster.wait_leader(|_| true)?.name();
    let after = cluster.failover()?;
    assert_ne!(after.name(), before);
    assert_eq!(execute(after.port(), &["SET", "lock", "b", "NX"])?, Value::Nil);
    Ok(())
}

fn slots(cluster: &Cluster) -> Done {
    let acquire = |owner| ["SET", "lock", owner, "NX"];
    let owner = cluster.nodes().iter().find(|node| {
        execute(node.port(), &acquire("a"))
            .is_ok_and(|response| response == Value::Text("OK".into()))
    });
    let owner = owner.expect("one of them has the slot");
    let other = cluster.nodes().iter().find(|node| node.name() != owner.name());
    let other = other.expect("there are three");
    let response = execute(other.port(), &acquire("b"))?;
    assert!(matches!(response, Value::Error(text) if text.contains("MOVED")));

    owner.kill()?;
    wait_until(Duration::from_secs(30), || match execute(other.port(), &acquire("b")) {
        Ok(Value::Error(text)) if text.contains("CLUSTERDOWN") => Ok(()),
        other => Err(format!("a cluster without some of its slots responded {other:?}")),
    })?;
    owner.restart()?;
    cluster.wait_ready()?;
    assert_eq!(execute(owner.port(), &acquire("b"))?, Value::Nil);
    Ok(())
}
