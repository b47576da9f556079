//! Consul: sessions that acquire a key.

use std::time::Duration;

use libtest_mimic::Trial;
use tenure_servers::wire::http::{get, json_field, request};
use tenure_servers::{Cluster, Options, Topology, wait_until};

use crate::suite::{Done, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let options = Options::default;
    vec![
        trial(Topology::Consul, "dev loses data on kill", options(), dev),
        trial(Topology::Consul3, "a lock survives its leader", options(), three),
    ]
}

fn dev(cluster: &Cluster) -> Done {
    let node = cluster.node();
    let first = session(node.port())?;
    let second = session(node.port())?;
    assert!(acquire(node.port(), &first)?);
    assert!(!acquire(node.port(), &second)?);
    node.kill()?;
    node.restart()?;
    cluster.wait_ready()?;
    let (status, body) = request(node.port(), "GET", "/v1/kv/lock", "")?;
    assert_eq!(status, 404, "{body}");
    let third = session(node.port())?;
    assert!(acquire(node.port(), &third)?);
    Ok(())
}

fn three(cluster: &Cluster) -> Done {
    let old = cluster.wait_leader(|_| true)?;
    let first = session(old.port())?;
    assert!(acquire(old.port(), &first)?);

    old.kill()?;
    let new = cluster.wait_leader(|node| node.name() != old.name())?;
    cluster.wait_ready()?;
    assert_eq!(holder(new.port())?, Some(first.clone()));
    let second = session(new.port())?;
    assert!(!acquire(new.port(), &second)?);

    old.restart()?;
    cluster.wait_ready()?;
    assert_eq!(holder(old.port())?, Some(first.clone()));

    let before = cluster.wait_leader(|_| true)?.name();
    let after = cluster.failover()?;
    assert_ne!(after.name(), before);
    assert_eq!(holder(after.port())?, Some(first));
    Ok(())
}

/// Creates a session without health checks, so that it does not end with its agent.
fn session(port: u16) -> Result<String, Box<dyn std::error::Error>> {
    let body = r#"{"TTL":"600s","LockDelay":"0s","Checks":[],"NodeChecks":[]}"#;
    // Just after an election the leader may not be ready yet.
    wait_until(Duration::from_secs(20), || {
        let (_, response) = request(port, "PUT", "/v1/session/create", body)?;
        json_field(&response, "ID").ok_or_else(|| response.into())
    })
}

fn acquire(port: u16, session: &str) -> std::io::Result<bool> {
    let (_, response) = request(port, "PUT", &format!("/v1/kv/lock?acquire={session}"), "me")?;
    Ok(response.trim() == "true")
}

fn holder(port: u16) -> std::io::Result<Option<String>> {
    Ok(json_field(&get(port, "/v1/kv/lock?consistent")?, "Session"))
}
