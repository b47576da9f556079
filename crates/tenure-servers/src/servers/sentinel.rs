//! Redis with two replicas, watched by three sentinels.

use std::io;
use std::time::Duration;

use super::redis::{must_execute, ready as server_ready, server};
use super::{StartContext, argv, ports};
use crate::cluster::Cluster;
use crate::error::Result;
use crate::node::{Node, Role, START_LIMIT};
use crate::provision;
use crate::wait::wait_until;
use crate::wire::redis::Value;

/// The name of the master in the sentinels' configuration.
pub(crate) const MASTER_NAME: &str = "mymaster";

/// The number of replicas.
const REPLICAS: usize = 2;

/// How long a replica may take to receive a message. It usually takes much less.
const STREAM_LIMIT: Duration = Duration::from_millis(200);

/// Starts one master, its replicas, and three sentinels of which two must agree.
pub(super) fn start(context: &StartContext<'_>) -> Result<Vec<Node>> {
    let program = provision::program(context.options.flavor.bundle())?;
    let master = server(context, &program, "master", &[])?;
    master.wait_response(START_LIMIT)?;
    let of = format!("127.0.0.1 {}", master.port());
    let mut nodes = vec![master];
    for i in 1..=REPLICAS {
        let replica = server(context, &program, &format!("replica{i}"), &["--replicaof", &of])?;
        replica.wait_response(START_LIMIT)?;
        nodes.push(replica);
    }
    for i in 1..=3 {
        let name = format!("s{i}");
        let [port] = ports::<1>()?;
        let file = context.folder(&name)?.join("sentinel.conf");
        let secret = context.secret.as_str();
        context.write(&file, &configuration(port.number(), nodes[0].port(), secret))?;
        let file = file.display().to_string();
        let argv = argv(program.argv(context.preload()), &[&file, "--sentinel"]);
        let mut sentinel = context.node(&name, vec![port], argv)?;
        sentinel.role = Role::Sentinel;
        sentinel.wait_response(START_LIMIT)?;
        shorten_intervals(&sentinel).map_err(|error| context.failed(error))?;
        nodes.push(sentinel);
    }
    Ok(nodes)
}

/// With all nodes up, the replicas must follow the master and every sentinel must know all nodes.
/// With some down, a majority of sentinels must name a master that runs and has that role.
pub(super) fn ready(cluster: &Cluster, node: &Node) -> io::Result<()> {
    let complete = cluster.nodes().iter().all(Node::is_running);
    if node.role() == Role::Sentinel {
        if complete {
            shorten_intervals(node)?;
        }
        if complete && !knows_all_nodes(node)? {
            return Err(io::Error::other("does not know the roles of all nodes yet"));
        }
        return Ok(());
    }
    server_ready(node)?;
    let Some(leader) = leader(cluster)? else { return Err(io::Error::other("no master")) };
    if role(leader)? != "master" {
        return Err(io::Error::other("the node that the sentinels name is not a master yet"));
    }
    if complete && leader.name() != node.name() {
        follows(node, leader)?;
    }
    Ok(())
}

/// Checks that a write to the master reaches the replica now.
///
/// `master_link_status` is `up` before that: a master that does not know yet that the first copy
/// has arrived sends nothing until the replica's next acknowledgement, up to a second later.
fn follows(replica: &Node, master: &Node) -> io::Result<()> {
    // A published message is part of the replication stream and leaves no key behind.
    must_execute(master, &["PUBLISH", "tenure:probe", ""])?;
    let sent = replication(master, "master_repl_offset")?;
    wait_until(STREAM_LIMIT, || {
        let up = replication(replica, "master_link_status")? == "up";
        if up && number(&replication(replica, "slave_repl_offset")?) >= number(&sent) {
            Ok(())
        } else {
            Err(io::Error::other("does not follow the master yet"))
        }
    })
}

/// A field of the server's `INFO replication`.
fn replication(node: &Node, name: &str) -> io::Result<String> {
    let info = must_execute(node, &["INFO", "replication"])?;
    let mut lines = info.text().unwrap_or_default().lines().filter_map(|line| line.split_once(':'));
    let line = lines.find(|(its_name, _)| *its_name == name);
    Ok(line.map(|(_, value)| value.trim().to_owned()).unwrap_or_default())
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

/// The member that at least two sentinels name, if it runs.
pub(super) fn leader(cluster: &Cluster) -> io::Result<Option<&Node>> {
    let sentinels = cluster.nodes().iter().filter(|node| node.role() == Role::Sentinel);
    let named: Vec<u16> = sentinels.filter_map(|sentinel| named(sentinel).ok()).collect();
    if named.is_empty() {
        return Err(io::Error::other("no sentinel responds"));
    }
    let agreed = |node: &&Node| named.iter().filter(|&&port| port == node.port()).count() >= 2;
    Ok(cluster.members().filter(|node| node.is_running()).find(agreed))
}

pub(super) fn step_down(cluster: &Cluster) -> io::Result<()> {
    let sentinel = cluster.nodes().iter().rfind(|node| node.is_running());
    let sentinel = sentinel.ok_or_else(|| io::Error::other("no sentinel runs"))?;
    // It refuses while an earlier failover is in progress (INPROG), or until it has polled the
    // replicas after that (NOGOODSLAVE).
    wait_until(START_LIMIT, || must_execute(sentinel, &["SENTINEL", "FAILOVER", MASTER_NAME]))
        .map(drop)
}

fn named(sentinel: &Node) -> io::Result<u16> {
    let response = must_execute(sentinel, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME])?;
    let Value::List(parts) = &response else { return Err(io::Error::other("no master named")) };
    let port = parts.get(1).and_then(Value::text).and_then(|port| port.parse().ok());
    port.ok_or_else(|| io::Error::other(format!("{response:?}")))
}

fn role(node: &Node) -> io::Result<String> {
    match must_execute(node, &["ROLE"])? {
        Value::List(parts) => Ok(parts.first().and_then(Value::text).unwrap_or_default().into()),
        other => Err(io::Error::other(format!("{other:?}"))),
    }
}

/// Whether the sentinel has seen the master, the replicas and the other sentinels in their roles.
///
/// It must have *seen* a replica in that role: a sentinel that last saw it as a master, before it
/// was configured to follow, reverts a later promotion.
fn knows_all_nodes(sentinel: &Node) -> io::Result<bool> {
    let master = fields(must_execute(sentinel, &["SENTINEL", "MASTER", MASTER_NAME])?);
    let Value::List(replicas) = must_execute(sentinel, &["SENTINEL", "REPLICAS", MASTER_NAME])?
    else {
        return Ok(false);
    };
    let replicas: Vec<_> = replicas.into_iter().map(fields).collect();
    let has = |fields: &[(String, String)], name: &str, value: &str| {
        fields.iter().any(|(its_name, its_value)| its_name == name && its_value == value)
    };
    let follows = |replica: &Vec<(String, String)>| {
        has(replica, "flags", "slave")
            && has(replica, "role-reported", "slave")
            && has(replica, "master-link-status", "ok")
    };
    Ok(replicas.len() == REPLICAS
        && replicas.iter().all(follows)
        && has(&master, "num-other-sentinels", "2")
        // Exactly this flag, without s_down or failover_in_progress.
        && has(&master, "flags", "master")
        && has(&master, "role-reported", "master"))
}

/// The fields of a list in which names and values alternate.
fn fields(response: Value) -> Vec<(String, String)> {
    let Value::List(parts) = response else { return Vec::new() };
    let text = |value: &Value| value.text().unwrap_or_default().to_owned();
    parts.chunks_exact(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}

/// Shortens the sentinels' intervals, which are 2 s among themselves and 10 s for the servers, so
/// that they find each other and turn an old master into a replica in about a second. The ping
/// interval stays: a replica whose last response is older than five of those is not promoted.
fn shorten_intervals(sentinel: &Node) -> io::Result<()> {
    let words = ["SENTINEL", "DEBUG", "info-period", "1000", "publish-period", "200"];
    must_execute(sentinel, &words).map(drop)
}

/// A master counts as down after a second without a response. With half of that, a busy machine
/// fails over without a fault.
fn configuration(port: u16, master: u16, secret: &str) -> String {
    format!(
        "port {port}\n\
         bind 127.0.0.1\n\
         dir .\n\
         requirepass {secret}\n\
         sentinel monitor {MASTER_NAME} 127.0.0.1 {master} 2\n\
         sentinel auth-pass {MASTER_NAME} {secret}\n\
         sentinel down-after-milliseconds {MASTER_NAME} 1000\n\
         sentinel failover-timeout {MASTER_NAME} 3000\n\
         sentinel parallel-syncs {MASTER_NAME} 1\n"
    )
}
