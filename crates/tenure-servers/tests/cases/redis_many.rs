//! Several Redis: five alone, a master with sentinels, masters that share the slots.

use std::time::Duration;

use libtest_mimic::Trial;
use tenure_servers::wire::redis::{Redis, Value, ask};
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

fn votes(cluster: &Cluster, who: &str) -> usize {
    let vote = |port| ask(port, &["SET", "lock", who, "NX", "PX", "10000"]);
    let ok = Value::Text("OK".into());
    cluster.nodes().iter().filter(|node| vote(node.port()).is_ok_and(|answer| answer == ok)).count()
}

fn majority(cluster: &Cluster) -> Done {
    assert_eq!(votes(cluster, "a"), 5);
    assert_eq!(votes(cluster, "b"), 0);
    let dead = &cluster.nodes()[2];
    dead.kill()?;
    let alive = cluster.nodes().iter().filter(|node| ask(node.port(), &["PING"]).is_ok());
    assert_eq!(alive.count(), 4);
    dead.restart()?;
    // It kept its vote; else b would get one now.
    assert_eq!(ask(dead.port(), &["GET", "lock"])?, Value::Text("a".into()));
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
    // Not by name: sentinels on a machine that stood still for a second have made up their minds.
    let old = cluster.wait_leader(|_| true)?;
    let mut redis = Redis::connect(old.port())?;
    assert_eq!(redis.command(&["SET", "lock", "a", "NX"])?, Value::Text("OK".into()));
    // Both replicas have it, so that it does not matter which one is promoted.
    assert_eq!(redis.command(&["WAIT", "2", "5000"])?, Value::Int(2));

    old.kill()?;
    let new = cluster.wait_leader(|node| node.name() != old.name())?;
    wait_until(Duration::from_secs(30), || match ask(new.port(), &["SET", "lock", "b", "NX"]) {
        Ok(Value::Nil) => Ok(()),
        other => Err(format!("the new master should take writes and know the lock: {other:?}")),
    })?;

    old.restart()?;
    // It comes back as it was, a master, until the sentinels tell it otherwise.
    cluster.wait_ready()?;
    assert_eq!(ask(old.port(), &["GET", "lock"])?, Value::Text("a".into()));

    let sentinel = cluster.nodes().iter().find(|node| node.role() == Role::Sentinel);
    let sentinel = sentinel.expect("there are three");
    sentinel.kill()?;
    sentinel.restart()?;
    cluster.wait_ready()?;

    let before = cluster.wait_leader(|_| true)?.name();
    let after = cluster.failover()?;
    assert_ne!(after.name(), before);
    assert_eq!(ask(after.port(), &["SET", "lock", "b", "NX"])?, Value::Nil);
    Ok(())
}

fn slots(cluster: &Cluster) -> Done {
    let take = |who| ["SET", "lock", who, "NX"];
    let home = cluster.nodes().iter().find(|node| {
        ask(node.port(), &take("a")).is_ok_and(|answer| answer == Value::Text("OK".into()))
    });
    let home = home.expect("one of them has the slot");
    let other = cluster.nodes().iter().find(|node| node.name() != home.name());
    let other = other.expect("there are three");
    assert!(matches!(ask(other.port(), &take("b"))?, Value::Error(text) if text.contains("MOVED")));

    home.kill()?;
    wait_until(Duration::from_secs(30), || match ask(other.port(), &take("b")) {
        Ok(Value::Error(text)) if text.contains("CLUSTERDOWN") => Ok(()),
        answer => Err(format!("a cluster without some of its slots said {answer:?}")),
    })?;
    home.restart()?;
    cluster.wait_ready()?;
    assert_eq!(ask(home.port(), &take("b"))?, Value::Nil);
    Ok(())
}
