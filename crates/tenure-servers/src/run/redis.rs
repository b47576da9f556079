//! Redis and Valkey: single masters, and masters that share the slots.

use std::io;

use super::{Site, argv};
use crate::error::Result;
use crate::get::{self, Program};
use crate::node::{Node, START_LONGEST};
use crate::options::Durability;
use crate::ports::Port;
use crate::wire::redis::{Value, ask};

/// Masters that do not know each other.
pub(super) fn start(site: &Site<'_>, count: usize) -> Result<Vec<Node>> {
    let program = get::program(site.options.flavor.bundle())?;
    let nodes = (1..=count).map(|i| server(site, &program, &format!("n{i}"), &[]));
    let nodes: Vec<Node> = nodes.collect::<Result<_>>()?;
    nodes.iter().try_for_each(|node| node.wait_answer(START_LONGEST))?;
    Ok(nodes)
}

/// Three masters that share the slots.
pub(super) fn cluster(site: &Site<'_>) -> Result<Vec<Node>> {
    let program = get::program(site.options.flavor.bundle())?;
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
        let mut node = server(site, &program, &format!("n{i}"), &extra)?;
        node.ports.push(bus);
        Ok(node)
    });
    let nodes: Vec<Node> = nodes.collect::<Result<_>>()?;
    nodes.iter().try_for_each(|node| node.wait_answer(START_LONGEST))?;
    join(&nodes).map_err(|error| site.failed(error))?;
    Ok(nodes)
}

/// One server, started and not waited for.
pub(super) fn server(
    site: &Site<'_>,
    program: &Program,
    name: &str,
    extra: &[&str],
) -> Result<Node> {
    let port = Port::reserve()?;
    let number = port.number().to_string();
    // In a file: everybody can read a command line. Included, so that it is not *the* file of its
    // configuration, which a sentinel would let it write anew.
    let (file, secret) = (site.folder(name)?.join(CONFIGURATION), site.secret.as_str());
    site.write(&file, &format!("requirepass {secret}\nmasterauth {secret}\n"))?;
    let mut options = vec!["--include", CONFIGURATION, "--port", &number, "--bind", "127.0.0.1"];
    options.extend(["--daemonize", "no"]);
    options.extend(["--dir", "."]);
    // Else a replica's first copy waits five seconds for company.
    options.extend(["--repl-diskless-sync-delay", "0"]);
    options.extend(["--enable-debug-command", "local"]);
    options.extend(persistence(site.options.durability));
    options.extend(extra);
    site.node(name, vec![port], argv(program.argv(site.preload()), &options))
}

const CONFIGURATION: &str = "redis.conf";

/// A real read: it fails while data are loaded or slots are not served.
pub(super) fn ready(node: &Node) -> io::Result<()> {
    match ask(node.port(), &["GET", "tenure:probe"])? {
        Value::Error(reason) if !reason.starts_with("MOVED") => Err(io::Error::other(reason)),
        _ => Ok(()),
    }
}

pub(super) fn cluster_ready(node: &Node) -> io::Result<()> {
    ready(node)?;
    let info = ask(node.port(), &["CLUSTER", "INFO"])?;
    match info.text().is_some_and(|text| text.contains("cluster_state:ok")) {
        true => Ok(()),
        false => Err(io::Error::other("cluster_state is not ok")),
    }
}

fn persistence(durability: Durability) -> &'static [&'static str] {
    match durability {
        Durability::Default => &[],
        Durability::Durable => &["--save", "", "--appendonly", "yes", "--appendfsync", "always"],
        // Each command is written before its answer, though not synced: the page cache outlives
        // the process.
        Durability::Fast => &["--save", "", "--appendonly", "yes", "--appendfsync", "no"],
        Durability::Memory => &["--save", "", "--appendonly", "no"],
    }
}

/// Gives each node its slots and introduces the others to the first.
fn join(nodes: &[Node]) -> io::Result<()> {
    let slots = ["0 5460", "5461 10922", "10923 16383"];
    for (i, (node, slots)) in nodes.iter().zip(slots).enumerate() {
        let (first, last) = slots.split_once(' ').unwrap_or_default();
        tell(node, &["CLUSTER", "ADDSLOTSRANGE", first, last])?;
        // Two nodes with the same epoch would have to settle that first.
        tell(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()])?;
    }
    for node in &nodes[1..] {
        let (port, bus) = (node.port().to_string(), node.ports[1].number().to_string());
        tell(&nodes[0], &["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
    }
    Ok(())
}

/// A command that must succeed.
pub(super) fn tell(node: &Node, words: &[&str]) -> io::Result<Value> {
    match ask(node.port(), words)? {
        Value::Error(reason) => Err(io::Error::other(format!("{}: {reason}", words.join(" ")))),
        value => Ok(value),
    }
}
