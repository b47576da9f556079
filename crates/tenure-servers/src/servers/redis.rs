//! Redis and Valkey: independent masters, and a Redis Cluster.

use std::io;

use super::{StartContext, argv};
use crate::error::Result;
use crate::node::{Node, START_LIMIT};
use crate::options::Durability;
use crate::ports::Port;
use crate::provision::{self, Program};
use crate::wire::redis::{Value, execute};

const CONFIGURATION: &str = "redis.conf";

/// Starts masters that do not know each other.
pub(super) fn start(context: &StartContext<'_>, count: usize) -> Result<Vec<Node>> {
    let program = provision::program(context.options.flavor.bundle())?;
    let nodes = (1..=count).map(|i| server(context, &program, &format!("n{i}"), &[]));
    let nodes: Vec<Node> = nodes.collect::<Result<_>>()?;
    nodes.iter().try_for_each(|node| node.wait_response(START_LIMIT))?;
    Ok(nodes)
}

/// Starts three masters that share the slots.
pub(super) fn cluster(context: &StartContext<'_>) -> Result<Vec<Node>> {
    let program = provision::program(context.options.flavor.bundle())?;
    let nodes = (1..=3).map(|i| {
        let bus = Port::reserve()?;
        let number = bus.number().to_string();
        let extra = [
            "--cluster-enabled",
            "yes",
            "--cluster-config-file",
            "nodes.conf",
            "--cluster-node-timeout",
            "1000",
            "--cluster-port",
            &number,
        ];
        let mut node = server(context, &program, &format!("n{i}"), &extra)?;
        node.ports.push(bus);
        Ok(node)
    });
    let nodes: Vec<Node> = nodes.collect::<Result<_>>()?;
    nodes.iter().try_for_each(|node| node.wait_response(START_LIMIT))?;
    join(&nodes).map_err(|error| context.failed(error))?;
    Ok(nodes)
}

/// Starts one server without waiting for it.
pub(super) fn server(
    context: &StartContext<'_>,
    program: &Program,
    name: &str,
    extra: &[&str],
) -> Result<Node> {
    let port = Port::reserve()?;
    let number = port.number().to_string();
    // The password is in a file, because every user can read a command line. The file is included
    // and not the server's main configuration file, which the server would rewrite on a failover.
    let file = context.folder(name)?.join(CONFIGURATION);
    let secret = context.secret.as_str();
    context.write(&file, &format!("requirepass {secret}\nmasterauth {secret}\n"))?;
    let mut options = vec!["--include", CONFIGURATION, "--port", &number, "--bind", "127.0.0.1"];
    options.extend(["--daemonize", "no"]);
    options.extend(["--dir", "."]);
    // Otherwise the first replica waits five seconds for others to synchronize with it.
    options.extend(["--repl-diskless-sync-delay", "0"]);
    options.extend(["--enable-debug-command", "local"]);
    options.extend(persistence(context.options.durability));
    options.extend(extra);
    context.node(name, vec![port], argv(program.argv(context.preload()), &options))
}

/// Reads a key, which fails while data are loaded or slots are not served.
pub(super) fn ready(node: &Node) -> io::Result<()> {
    match execute(node.port(), &["GET", "tenure:probe"])? {
        Value::Error(reason) if !reason.starts_with("MOVED") => Err(io::Error::other(reason)),
        _ => Ok(()),
    }
}

pub(super) fn cluster_ready(node: &Node) -> io::Result<()> {
    ready(node)?;
    let info = execute(node.port(), &["CLUSTER", "INFO"])?;
    if info.text().is_some_and(|text| text.contains("cluster_state:ok")) {
        Ok(())
    } else {
        Err(io::Error::other("cluster_state is not ok"))
    }
}

fn persistence(durability: Durability) -> &'static [&'static str] {
    match durability {
        Durability::Default => &[],
        Durability::Durable => &["--save", "", "--appendonly", "yes", "--appendfsync", "always"],
        // Each command is written before its response, but not synced: the page cache outlives the
        // process.
        Durability::Fast => &["--save", "", "--appendonly", "yes", "--appendfsync", "no"],
        Durability::Memory => &["--save", "", "--appendonly", "no"],
    }
}

/// Gives each node its slots and introduces the others to the first.
fn join(nodes: &[Node]) -> io::Result<()> {
    let slots = ["0 5460", "5461 10922", "10923 16383"];
    for (i, (node, slots)) in nodes.iter().zip(slots).enumerate() {
        let (first, last) = slots.split_once(' ').unwrap_or_default();
        must_execute(node, &["CLUSTER", "ADDSLOTSRANGE", first, last])?;
        // Two nodes with the same epoch would have to resolve that conflict first.
        must_execute(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()])?;
    }
    for node in &nodes[1..] {
        let port = node.port().to_string();
        let bus = node.ports[1].number().to_string();
        must_execute(&nodes[0], &["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
    }
    Ok(())
}

/// Executes a command. An error of the server is an error.
pub(super) fn must_execute(node: &Node, words: &[&str]) -> io::Result<Value> {
    match execute(node.port(), words)? {
        Value::Error(reason) => Err(io::Error::other(format!("{}: {reason}", words.join(" ")))),
        value => Ok(value),
    }
}
