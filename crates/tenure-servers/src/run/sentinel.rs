//! Redis with two replicas, watched by three sentinels.

use std::io;
use std::time::Duration;

use super::redis::{ready as server_ready, server, tell};
use super::{Site, argv, ports};
use crate::cluster::Cluster;
use crate::error::Result;
use crate::get;
use crate::node::{Node, Role, START_LONGEST};
use crate::wait::wait_until;
use crate::wire::redis::Value;

/// What the sentinels call the master they watch.
pub(crate) const MASTER_NAME: &str = "mymaster";

const REPLICAS: usize = 2;

/// One master, its replicas, three sentinels of which two must agree.
pub(super) fn start(site: &Site<'_>) -> Result<Vec<Node>> {
    let program = get::program(site.options.flavor.bundle())?;
    let master = server(site, &program, "master", &[])?;
    master.wait_answer(START_LONGEST)?;
    let of = format!("127.0.0.1 {}", master.port());
    let mut nodes = vec![master];
    for i in 1..=REPLICAS {
        let replica = server(site, &program, &format!("replica{i}"), &["--replicaof", &of])?;
        replica.wait_answer(START_LONGEST)?;
        nodes.push(replica);
    }
    for i in 1..=3 {
        let name = format!("s{i}");
        let [port] = ports::<1>()?;
        let file = site.folder(&name)?.join("sentinel.conf");
        let secret = site.secret.as_str();
        site.write(&file, &configuration(port.number(), nodes[0].port(), secret))?;
        let file = file.display().to_string();
        let argv = argv(program.argv(site.preload()), &[&file, "--sentinel"]);
        let mut sentinel = site.node(&name, vec![port], argv)?;
        sentinel.role = Role::Sentinel;
        sentinel.wait_answer(START_LONGEST)?;
        hurry(&sentinel).map_err(|error| site.failed(error))?;
        nodes.push(sentinel);
    }
    Ok(nodes)
}

/// With all nodes up: the replicas follow and every sentinel knows everybody. With some down:
/// a majority of sentinels names a master that runs and is one.
pub(super) fn ready(cluster: &Cluster, node: &Node) -> io::Result<()> {
    let complete = cluster.nodes().iter().all(Node::is_running);
    if node.role() == Role::Sentinel {
        if complete {
            hurry(node)?;
        }
        return match complete && !knows_everybody(node)? {
            true => Err(io::Error::other("has not seen everybody in their places yet")),
            false => Ok(()),
        };
    }
    server_ready(node)?;
    let Some(leader) = leader(cluster)? else { return Err(io::Error::other("no master")) };
    if role(leader)? != "master" {
        return Err(io::Error::other("the one that the sentinels name is not a master yet"));
    }
    if complete && leader.name() != node.name() {
        follows(node, leader)?;
    }
    Ok(())
}

/// Whether what the master is told now reaches the replica.
///
/// Its link is `up` before that: a master that has not noticed yet that the first copy arrived
/// sends nothing until the replica's next word, up to a second later.
fn follows(replica: &Node, master: &Node) -> io::Result<()> {
    // A message moves the stream on and leaves no key behind.
    tell(master, &["PUBLISH", "tenure:probe", ""])?;
    let sent = replication(master, "master_repl_offset")?;
    wait_until(STREAM_LONGEST, || {
        let up = replication(replica, "master_link_status")? == "up";
        match up && number(&replication(replica, "slave_repl_offset")?) >= number(&sent) {
            true => Ok(()),
            false => Err(io::Error::other("does not follow the master yet")),
        }
    })
}

/// A line of what a server says about its replication.
fn replication(node: &Node, name: &str) -> io::Result<String> {
    let info = tell(node, &["INFO", "replication"])?;
    let mut lines = info.text().unwrap_or_default().lines().filter_map(|line| line.split_once(':'));
    let line = lines.find(|(its_name, _)| *its_name == name);
    Ok(line.map(|(_, value)| value.trim().to_owned()).unwrap_or_default())
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

/// A message on its way to a replica takes much less.
const STREAM_LONGEST: Duration = Duration::from_millis(200);

/// The member that most sentinels name, if it runs.
pub(super) fn leader(cluster: &Cluster) -> io::Result<Option<&Node>> {
    let sentinels = cluster.nodes().iter().filter(|node| node.role() == Role::Sentinel);
    let named: Vec<u16> = sentinels.filter_map(|sentinel| named(sentinel).ok()).collect();
    if named.is_empty() {
        return Err(io::Error::other("no sentinel answers"));
    }
    let agreed = |node: &&Node| named.iter().filter(|&&port| port == node.port()).count() >= 2;
    Ok(cluster.members().filter(|node| node.is_running()).find(agreed))
}

pub(super) fn step_down(cluster: &Cluster) -> io::Result<()> {
    let sentinel = cluster.nodes().iter().rfind(|node| node.is_running());
    let sentinel = sentinel.ok_or_else(|| io::Error::other("no sentinel runs"))?;
    // It refuses while it still winds up an earlier one (INPROG), or has not asked the replicas
    // how they are since then (NOGOODSLAVE).
    wait_until(START_LONGEST, || tell(sentinel, &["SENTINEL", "FAILOVER", MASTER_NAME])).map(drop)
}

fn named(sentinel: &Node) -> io::Result<u16> {
    let answer = tell(sentinel, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME])?;
    let Value::List(parts) = &answer else { return Err(io::Error::other("no master named")) };
    let port = parts.get(1).and_then(Value::text).and_then(|port| port.parse().ok());
    port.ok_or_else(|| io::Error::other(format!("{answer:?}")))
}

fn role(node: &Node) -> io::Result<String> {
    match tell(node, &["ROLE"])? {
        Value::List(parts) => Ok(parts.first().and_then(Value::text).unwrap_or_default().into()),
        other => Err(io::Error::other(format!("{other:?}"))),
    }
}

/// Whether the sentinel has seen the master, the replicas and the other sentinels in their places.
///
/// It must have *seen* a replica as one: a sentinel that last saw it as a master, before it was
/// told to follow, takes a later promotion for disobedience and undoes it.
fn knows_everybody(sentinel: &Node) -> io::Result<bool> {
    let master = fields(tell(sentinel, &["SENTINEL", "MASTER", MASTER_NAME])?);
    let Value::List(replicas) = tell(sentinel, &["SENTINEL", "REPLICAS", MASTER_NAME])? else {
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
        // Without further words like s_down or failover_in_progress.
        && has(&master, "flags", "master")
        && has(&master, "role-reported", "master"))
}

/// A list of names and values, in turn.
fn fields(answer: Value) -> Vec<(String, String)> {
    let Value::List(parts) = answer else { return Vec::new() };
    let text = |value: &Value| value.text().unwrap_or_default().to_owned();
    parts.chunks_exact(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}

/// Sentinels ask each other every 2 s and the servers every 10 s; shorter, so that they find each
/// other and turn an old master into a replica in about a second. Not the ping period: a replica
/// whose answers are older than five of those is not good enough to take over.
fn hurry(sentinel: &Node) -> io::Result<()> {
    let words = ["SENTINEL", "DEBUG", "info-period", "1000", "publish-period", "200"];
    tell(sentinel, &words).map(drop)
}

/// A second without an answer makes a master dead: with half of that, a busy machine fails over
/// by itself.
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
