//! etcd: one member, or three.

use std::io;

use super::{StartContext, argv, ports};
use crate::cluster::Cluster;
use crate::error::Result;
use crate::node::{Node, START_LIMIT};
use crate::provision::{self, Bundle};
use crate::wire::http::{get as http_get, json_field, post};

pub(super) fn start(context: &StartContext<'_>, count: usize) -> Result<Vec<Node>> {
    let program = provision::program(Bundle::Etcd)?;
    let pairs = (0..count).map(|_| ports::<2>()).collect::<Result<Vec<_>>>()?;
    let peers = pairs.iter().zip(1..);
    let peers = peers.map(|([_, peer], i)| format!("n{i}=http://127.0.0.1:{}", peer.number()));
    let peers = peers.collect::<Vec<_>>().join(",");
    // 3.4 does not know the option and would not start.
    let unsafe_ok = program.version.is_none_or(|version| version >= (3, 5));
    let mut nodes = Vec::new();
    for ([client, peer], i) in pairs.into_iter().zip(1..) {
        let name = format!("n{i}");
        let client_url = format!("http://127.0.0.1:{}", client.number());
        let secure = context.options.tls.as_ref().map(|_| ports::<1>()).transpose()?;
        let listen = match &secure {
            Some([port]) => format!("{client_url},https://127.0.0.1:{}", port.number()),
            None => client_url.clone(),
        };
        let files = ["trusted-ca:ca.pem", "cert:server.pem", "key:server.key"].map(|file| {
            let (kind, name) = file.split_once(':')?;
            Some(format!("--{kind}-file={}", context.options.tls_file(name)?))
        });
        let peer_url = format!("http://127.0.0.1:{}", peer.number());
        let mut options = vec!["--name", &name, "--data-dir", "data"];
        options.extend(["--listen-client-urls", &listen]);
        options.extend(["--advertise-client-urls", &client_url]);
        options.extend(["--listen-peer-urls", &peer_url]);
        options.extend(["--initial-advertise-peer-urls", &peer_url]);
        options.extend(["--initial-cluster", &peers, "--initial-cluster-state", "new"]);
        options.extend(["--logger", "zap", "--log-level", "warn"]);
        if context.options.durability.skips_sync() && unsafe_ok {
            options.push("--unsafe-no-fsync");
        }
        options.extend(files.iter().flatten().map(String::as_str));
        if secure.is_some() {
            options.push("--client-cert-auth");
        }
        let argv = argv(program.argv(None), &options);
        let ports = [client, peer].into_iter().chain(secure.into_iter().flatten()).collect();
        nodes.push(context.node(&name, ports, argv)?);
    }
    nodes.iter().try_for_each(|node| node.wait_response(START_LIMIT))?;
    Ok(nodes)
}

/// etcd's own health check: a read that needs a majority.
pub(super) fn ready(node: &Node) -> io::Result<()> {
    let response = http_get(node.port(), "/health")?;
    match json_field(&response, "health").as_deref() {
        Some("true") => Ok(()),
        _ => Err(io::Error::other(response)),
    }
}

/// The member that a majority of members reports as leader.
pub(super) fn leader(cluster: &Cluster) -> io::Result<Option<&Node>> {
    let running = cluster.nodes().iter().filter(|node| node.is_running());
    let states: Vec<_> = running.filter_map(|node| Some((node, status(node).ok()?))).collect();
    if states.is_empty() {
        return Err(io::Error::other("no member responds"));
    }
    let followers = |id: &str| states.iter().filter(|(_, state)| state.leader == id).count();
    let majority = cluster.nodes().len() / 2 + 1;
    let leader = states.iter().find(|(_, state)| followers(&state.member) >= majority);
    Ok(leader.map(|&(node, _)| node))
}

pub(super) fn step_down(cluster: &Cluster, leader: &Node) -> io::Result<()> {
    let others = cluster.nodes().iter().filter(|node| node.name() != leader.name());
    let other = others.filter_map(|node| status(node).ok()).next();
    let other = other.ok_or_else(|| io::Error::other("no other member responds"))?;
    let body = format!("{{\"targetID\":\"{}\"}}", other.member);
    post(leader.port(), "/v3/maintenance/transfer-leadership", &body).map(drop)
}

struct Status {
    member: String,
    leader: String,
}

fn status(node: &Node) -> io::Result<Status> {
    let response = post(node.port(), "/v3/maintenance/status", "{}")?;
    let missing = || io::Error::other(response.clone());
    let field = |name| json_field(&response, name).ok_or_else(missing);
    Ok(Status { member: field("member_id")?, leader: field("leader")? })
}
