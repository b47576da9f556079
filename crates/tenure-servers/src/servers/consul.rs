//! Consul: an agent in development mode, or three servers.

use std::io;

use super::{StartContext, argv, ports};
use crate::cluster::Cluster;
use crate::error::Result;
use crate::node::{Node, START_LIMIT};
use crate::ports::Port;
use crate::provision::{self, Bundle, Program};
use crate::wire::http::{get as http_get, request};

/// The indexes of a node's ports.
const SERF: usize = 1;
const RPC: usize = 2;
const COMMON: &str = "session_ttl_min = \"1s\"\n\
    performance {\n  raft_multiplier = 1\n}\n\
    disable_update_check = true\n";
const SERVER: &str = "server = true\n\
    bootstrap_expect = 3\n\
    data_dir = \"data\"\n\
    bind_addr = \"127.0.0.1\"\n\
    client_addr = \"127.0.0.1\"\n\
    retry_interval = \"200ms\"\n\
    leave_on_terminate = false\n\
    disable_host_node_id = true\n";

/// Starts an agent in development mode. It keeps its data in memory, so `kill -9` loses them.
pub(super) fn dev(context: &StartContext<'_>) -> Result<Vec<Node>> {
    let program = provision::program(Bundle::Consul)?;
    let common = ports::<4>()?;
    let file = context.folder("n1")?.join("n1.hcl");
    let secure = context.options.tls.as_ref().map(|_| ports::<1>()).transpose()?;
    let mut text = format!("{COMMON}{}", ports_line(&program, &common, true));
    if let Some([port]) = &secure {
        text = text.replace("https = -1", &format!("https = {}", port.number()));
        for (kind, name) in [("ca", "ca.pem"), ("cert", "server.pem"), ("key", "server.key")] {
            let file = context.options.tls_file(name).unwrap_or_default();
            text.push_str(&format!("{kind}_file = \"{file}\"\n"));
        }
        text.push_str("verify_incoming_https = true\n");
    }
    context.write(&file, &text)?;
    let options = ["agent", "-dev", "-node", "n1", "-bind", "127.0.0.1", "-client", "127.0.0.1"];
    let mut argv = argv(program.argv(None), &options);
    argv.extend(["-log-level", "warn", "-config-file", "n1.hcl"].map(Into::into));
    let ports = common.into_iter().chain(secure.into_iter().flatten()).collect();
    let node = context.node("n1", ports, argv)?;
    node.wait_response(START_LIMIT)?;
    Ok(vec![node])
}

/// Starts three servers.
pub(super) fn three(context: &StartContext<'_>) -> Result<Vec<Node>> {
    let program = provision::program(Bundle::Consul)?;
    let sets = (0..3).map(|_| ports::<4>()).collect::<Result<Vec<_>>>()?;
    let join = sets.iter().map(|ports| format!("\"127.0.0.1:{}\"", ports[SERF].number()));
    let join = join.collect::<Vec<_>>().join(", ");
    let mut nodes = Vec::new();
    for (ports, i) in sets.into_iter().zip(1..) {
        let name = format!("n{i}");
        let text = format!(
            "{COMMON}{SERVER}node_name = \"{name}\"\nretry_join = [{join}]\n{}",
            ports_line(&program, &ports, false)
        );
        context.write(&context.folder(&name)?.join("node.hcl"), &text)?;
        let options = ["agent", "-config-file", "node.hcl", "-log-level", "warn"];
        nodes.push(context.node(&name, ports.into(), argv(program.argv(None), &options))?);
    }
    nodes.iter().try_for_each(|node| node.wait_response(START_LIMIT))?;
    Ok(nodes)
}

/// The node must know all nodes, and a read that needs a majority must work.
pub(super) fn ready(cluster: &Cluster, node: &Node) -> io::Result<()> {
    let known = http_get(node.port(), "/v1/catalog/nodes")?.matches("\"Node\"").count();
    if known < cluster.nodes().len() {
        return Err(io::Error::other(format!("knows {known} nodes")));
    }
    match request(node.port(), "GET", "/v1/kv/tenure/probe?consistent", "")? {
        // 404 means that the leader has confirmed that the key does not exist.
        (200 | 404, _) => Ok(()),
        (status, body) => Err(io::Error::other(format!("status {status}: {body}"))),
    }
}

/// The member that a majority of members reports as leader.
pub(super) fn leader(cluster: &Cluster) -> io::Result<Option<&Node>> {
    let running = cluster.nodes().iter().filter(|node| node.is_running());
    let named = running.filter_map(|node| http_get(node.port(), "/v1/status/leader").ok());
    let named: Vec<String> = named.collect();
    if named.is_empty() {
        return Err(io::Error::other("no server responds"));
    }
    let majority = cluster.nodes().len() / 2 + 1;
    Ok(cluster.nodes().iter().filter(|node| node.is_running()).find(|node| {
        let address = format!("127.0.0.1:{}\"", node.ports[RPC].number());
        named.iter().filter(|name| name.contains(&address)).count() >= majority
    }))
}

/// The configuration of all ports; otherwise several agents would use the same default port.
fn ports_line(program: &Program, ports: &[Port; 4], wan: bool) -> String {
    let [http, serf, rpc, other] = ports.each_ref().map(Port::number);
    let wan = if wan { i32::from(other) } else { -1 };
    // Older versions do not know this port and would not start.
    let newer = program.version.is_some_and(|version| version >= (1, 14));
    let newer = if newer { "grpc_tls = -1" } else { "" };
    format!(
        "ports {{\n  http = {http}\n  serf_lan = {serf}\n  server = {rpc}\n  serf_wan = {wan}\n  \
         dns = -1\n  grpc = -1\n  https = -1\n  {newer}\n}}\n"
    )
}
