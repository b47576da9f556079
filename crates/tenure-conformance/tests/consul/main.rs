//! Cases that need a real Consul: faults, foreign clients on the same keys, the number of requests.
//! Each case has servers of its own, so that it can stop and kill them.
//! `cargo test -p tenure-conformance --test consul -- foreign_clients` runs some of them.

#![expect(clippy::unwrap_used, reason = "a case that panics fails")]

mod agents;
mod doctor;
mod faults;
mod foreign_clients;
mod grants;
mod mode_faults;
mod modes;
mod traffic;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tenure::backend::{Claim, Owner};
use tenure::{Client, Key};
use tenure_conformance::trials;
use tenure_servers::wire::http::{json_field, request};
use tenure_servers::{Cluster, Node};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

fn main() {
    let modules = [agents::CASES, faults::CASES, grants::CASES, modes::CASES, mode_faults::CASES];
    let more = [doctor::CASES, foreign_clients::CASES, traffic::CASES];
    trials::main(3, &[&modules[..], &more[..]].concat())
}

/// A client of the whole cluster.
pub(crate) async fn connect(cluster: &Cluster) -> Result<Client> {
    Ok(tenure::connect(&url(&cluster.hosts(), "")).await?)
}

/// The URL of test servers, which allow short sessions.
pub(crate) fn url(hosts: &str, options: &str) -> String {
    format!("consul://{hosts}?min_ttl=1s&{options}")
}

/// A request that must succeed.
pub(crate) fn put(node: &Node, path: &str, body: &str) -> Result<String> {
    match request(node.port(), "PUT", path, body).with_context(|| path.to_owned())? {
        (200, response) => Ok(response),
        (status, response) => bail!("{path}: status {status}: {response}"),
    }
}

/// What is stored under a key; `None` if it does not exist.
pub(crate) fn stored(node: &Node, key: &str) -> Result<Option<String>> {
    match request(node.port(), "GET", &format!("/v1/kv/{key}?consistent"), "")? {
        (200, entry) => Ok(Some(entry)),
        (404, _) => Ok(None),
        (status, response) => bail!("{key}: status {status}: {response}"),
    }
}

/// A field of what is stored under a key.
pub(crate) fn field(node: &Node, key: &str, name: &str) -> Result<String> {
    let entry = stored(node, key)?.with_context(|| format!("{key} is there"))?;
    json_field(&entry, name).with_context(|| format!("{entry} has {name}"))
}

/// All keys in Consul.
pub(crate) fn keys(node: &Node) -> Result<String> {
    match request(node.port(), "GET", "/v1/kv/?keys&consistent", "")? {
        (200, keys) => Ok(keys),
        (404, _) => Ok("[]".to_owned()),
        (status, response) => bail!("status {status}: {response}"),
    }
}

/// A claim as a client would make it.
pub(crate) fn claim(key: &str) -> Result<Claim> {
    Ok(Claim::new(Key::new(key)?, Owner::random(), Duration::from_secs(20)))
}
