//! etcd: create if absent, under a lease.

use libtest_mimic::Trial;
use tenure_servers::wire::http::{json_field, post};
use tenure_servers::{Cluster, Durability, Options, Topology};

use crate::suite::{Done, trial};

// In base64, as the gateway requires: lock, owner1, owner2.
const LOCK: &str = "bG9jaw==";
const OWNER_1: &str = "b3duZXIx";
const OWNER_2: &str = "b3duZXIy";

pub(crate) fn trials() -> Vec<Trial> {
    let options = Options::default;
    let durable = options().durability(Durability::Durable);
    vec![
        trial(Topology::Etcd, "fast survives kill", options(), single),
        trial(Topology::Etcd, "durable survives kill", durable, single),
        trial(Topology::Etcd3, "a lock survives its leader", options(), three),
    ]
}

fn single(cluster: &Cluster) -> Done {
    let node = cluster.node();
    let lease = grant(node.port())?;
    assert!(acquire(node.port(), OWNER_1, &lease)?);
    assert!(!acquire(node.port(), OWNER_2, &lease)?);
    node.kill()?;
    node.restart()?;
    cluster.wait_ready()?;
    assert!(!acquire(node.port(), OWNER_2, &lease)?);
    assert_eq!(holder(node.port())?.as_deref(), Some(OWNER_1));
    // A property of etcd: a restart gives a lease its full time again.
    let left = post(node.port(), "/v3/lease/timetolive", &format!("{{\"ID\":\"{lease}\"}}"))?;
    let left: u32 = json_field(&left, "TTL").unwrap_or_default().parse()?;
    assert!((50..=60).contains(&left), "{left} s left");
    Ok(())
}

fn three(cluster: &Cluster) -> Done {
    let old = cluster.wait_leader(|_| true)?;
    let lease = grant(old.port())?;
    assert!(acquire(old.port(), OWNER_1, &lease)?);

    old.kill()?;
    let new = cluster.wait_leader(|node| node.name() != old.name())?;
    cluster.wait_ready()?;
    assert!(!acquire(new.port(), OWNER_2, &lease)?);

    old.restart()?;
    cluster.wait_ready()?;
    assert_eq!(holder(old.port())?.as_deref(), Some(OWNER_1));

    let before = cluster.wait_leader(|_| true)?.name();
    let after = cluster.failover()?;
    assert_ne!(after.name(), before);
    assert!(!acquire(after.port(), OWNER_2, &lease)?);
    Ok(())
}

fn grant(port: u16) -> Result<String, Box<dyn std::error::Error>> {
    let response = post(port, "/v3/lease/grant", r#"{"TTL":"60"}"#)?;
    json_field(&response, "ID").ok_or_else(|| response.into())
}

/// Tries to acquire the lock. Returns whether this owner got it.
fn acquire(port: u16, owner: &str, lease: &str) -> Result<bool, Box<dyn std::error::Error>> {
    let absent = format!(r#"{{"target":"CREATE","key":"{LOCK}","createRevision":"0"}}"#);
    let put = format!(r#"{{"requestPut":{{"key":"{LOCK}","value":"{owner}","lease":"{lease}"}}}}"#);
    let body = format!(r#"{{"compare":[{absent}],"success":[{put}]}}"#);
    let response = post(port, "/v3/kv/txn", &body)?;
    // The gateway omits fields that are false.
    Ok(json_field(&response, "succeeded").is_some_and(|value| value == "true"))
}

fn holder(port: u16) -> std::io::Result<Option<String>> {
    let response = post(port, "/v3/kv/range", &format!(r#"{{"key":"{LOCK}"}}"#))?;
    Ok(json_field(&response, "value"))
}
