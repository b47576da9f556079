//! Many waiters: how many requests does one handoff cost the server (F22)?

use anyhow::{Context, Result};
use tenure_servers::wire::http;
use tenure_servers::wire::mysql::Mysql;
use tenure_servers::wire::{redis, zookeeper};
use tenure_servers::{Node, Topology};

use crate::runner::Runner;

const WAITERS: [&str; 12] = ["B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M"];
/// The most requests that one handoff may cost.
const LIMIT: f64 = 3.0;

/// Twelve clients wait; each of them gets the lock once.
pub(super) fn herd(runner: &mut Runner<'_>) -> Result<()> {
    runner.start_client("A")?;
    for name in WAITERS {
        runner.start_client(name)?;
    }
    runner.acquire_and_read("A")?;
    let mut waiting = Vec::new();
    for name in WAITERS {
        waiting.push((name, runner.acquire(name, None)?));
    }
    runner.wait_for_waiter()?;
    for node in used_nodes(runner)? {
        if runner.setup.cluster()?.topology().server() == "redis" {
            // Earlier runs may have used scripts on this server.
            redis::execute(node.port(), &["CONFIG", "RESETSTAT"])?;
        }
    }
    let before = requests(runner)?;
    runner.write_and_release("A")?;
    for _ in WAITERS {
        let Some(index) = runner.next_granted(&waiting)? else { break };
        let (name, _) = waiting.swap_remove(index);
        runner.read(name)?;
        runner.write_and_release(name)?;
    }
    let cost = (requests(runner)? - before) as f64 / WAITERS.len() as f64;
    runner.measure("requests for one hand-over", cost, "");
    runner.measure("limit: requests for one hand-over", LIMIT, "");
    Ok(())
}

/// Number of requests that the servers have received: by their own count, or by that of the
/// proxies where a server does not show it at once.
fn requests(runner: &mut Runner<'_>) -> Result<u64> {
    let cluster = runner.setup.cluster()?;
    let count: fn(&Node) -> Result<u64> = match cluster.topology().server() {
        "redis" => redis_requests,
        "mariadb" => mariadb_requests,
        "etcd" => etcd_requests,
        "zookeeper" => zookeeper_requests,
        _ => return proxied_requests(runner),
    };
    used_nodes(runner)?.into_iter().map(count).sum()
}

/// The servers that clients use: all but replicas.
fn used_nodes<'a>(runner: &Runner<'a>) -> Result<Vec<&'a Node>> {
    let cluster = runner.setup.cluster()?;
    match cluster.topology() {
        Topology::RedisSentinel => Ok(vec![cluster.leader()?.context("there is no master")?]),
        _ => Ok(cluster.members().collect()),
    }
}

fn proxied_requests(runner: &mut Runner<'_>) -> Result<u64> {
    let mut sum = 0;
    for name in WAITERS.into_iter().chain(["A"]) {
        sum += runner.route(name)?.requests();
    }
    Ok(sum)
}

/// Redis counts the commands inside of a script as well, so that where scripts are used only the
/// scripts are counted.
fn redis_requests(node: &Node) -> Result<u64> {
    let info = redis::execute(node.port(), &["INFO", "commandstats"])?;
    let (mut all, mut scripts) = (0, 0);
    for line in info.text().unwrap_or_default().lines() {
        let Some((name, rest)) = line.split_once(":calls=") else { continue };
        let calls: u64 = rest.split(',').next().unwrap_or_default().parse()?;
        all += calls;
        scripts += if name.starts_with("cmdstat_eval") { calls } else { 0 };
    }
    Ok(if scripts > 0 { scripts } else { all })
}

fn mariadb_requests(node: &Node) -> Result<u64> {
    let sql = "select variable_value from information_schema.global_status \
               where variable_name = 'QUESTIONS'";
    let count = Mysql::connect(node.port())?.query(sql)?.pop();
    Ok(count.context("MariaDB shows no number of statements")?.parse()?)
}

/// Messages of clients, including those within a stream.
fn etcd_requests(node: &Node) -> Result<u64> {
    let text = http::get(node.port(), "/metrics")?;
    let lines = text.lines().filter(|line| line.starts_with("grpc_server_msg_received_total"));
    let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    Ok(counts.sum::<f64>() as u64)
}

fn zookeeper_requests(node: &Node) -> Result<u64> {
    let text = zookeeper::four_letters(node.port(), "mntr")?;
    let count = text.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
    let count = count.context("ZooKeeper shows no number of packets")?;
    Ok(count.trim().parse::<f64>()? as u64)
}
