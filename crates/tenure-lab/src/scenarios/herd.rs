//! Many waiters (F22): what does one hand-over cost the server?

use anyhow::{Context, Result};
use tenure_servers::wire::http;
use tenure_servers::wire::mysql::Mysql;
use tenure_servers::wire::{redis, zookeeper};
use tenure_servers::{Node, Proxy, Topology};

use crate::stage::Stage;

const WAITERS: [&str; 12] = ["B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M"];

/// Twelve wait; each gets its turn.
pub(super) fn herd(stage: &mut Stage<'_>) -> Result<()> {
    stage.client("A")?;
    for name in WAITERS {
        stage.client(name)?;
    }
    stage.enter("A")?;
    let mut waiting = Vec::new();
    for name in WAITERS {
        waiting.push((name, stage.ask(name, None)?));
    }
    stage.wait_waiting()?;
    for node in asked(stage)? {
        if stage.rig.cluster()?.topology().server() == "redis" {
            // Others may have used scripts there.
            redis::ask(node.port(), &["CONFIG", "RESETSTAT"])?;
        }
    }
    let before = requests(stage)?;
    stage.finish_work("A")?;
    for _ in WAITERS {
        let Some(place) = stage.wait_granted(&waiting)? else { break };
        let (name, _) = waiting.swap_remove(place);
        stage.read(name)?;
        stage.finish_work(name)?;
    }
    let cost = (requests(stage)? - before) as f64 / WAITERS.len() as f64;
    stage.measure("requests for one hand-over", cost, "");
    stage.measure("limit: requests for one hand-over", 3.0, "");
    Ok(())
}

/// How many requests the servers have had: by their own count, or by that of the links to them
/// where a server does not tell at once.
fn requests(stage: &mut Stage<'_>) -> Result<u64> {
    let cluster = stage.rig.cluster()?;
    let count: fn(&Node) -> Result<u64> = match cluster.topology().server() {
        "redis" => of_redis,
        "mariadb" => of_mariadb,
        "etcd" => of_etcd,
        "zookeeper" => of_zookeeper,
        _ => return on_the_wire(stage),
    };
    asked(stage)?.into_iter().map(count).sum()
}

/// The servers that clients ask: all but replicas.
fn asked<'a>(stage: &Stage<'a>) -> Result<Vec<&'a Node>> {
    let cluster = stage.rig.cluster()?;
    match cluster.topology() {
        Topology::RedisSentinel => Ok(vec![cluster.leader()?.context("no master")?]),
        _ => Ok(cluster.members().collect()),
    }
}

fn on_the_wire(stage: &mut Stage<'_>) -> Result<u64> {
    let mut sum = 0;
    for name in WAITERS.into_iter().chain(["A"]) {
        sum += stage.link(name)?.sum(Proxy::requests);
    }
    Ok(sum)
}

/// What a script does counts as well, so where scripts are used only they are counted.
fn of_redis(node: &Node) -> Result<u64> {
    let info = redis::ask(node.port(), &["INFO", "commandstats"])?;
    let (mut all, mut scripts) = (0, 0);
    for line in info.text().unwrap_or_default().lines() {
        let Some((name, rest)) = line.split_once(":calls=") else { continue };
        let calls: u64 = rest.split(',').next().unwrap_or_default().parse()?;
        all += calls;
        scripts += if name.starts_with("cmdstat_eval") { calls } else { 0 };
    }
    Ok(if scripts > 0 { scripts } else { all })
}

fn of_mariadb(node: &Node) -> Result<u64> {
    let question = "select variable_value from information_schema.global_status \
                    where variable_name = 'QUESTIONS'";
    let answer = Mysql::connect(node.port())?.query(question)?.pop();
    Ok(answer.context("no answer")?.parse()?)
}

/// Messages of clients, those within a stream among them.
fn of_etcd(node: &Node) -> Result<u64> {
    let text = http::get(node.port(), "/metrics")?;
    let lines = text.lines().filter(|line| line.starts_with("grpc_server_msg_received_total"));
    let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    Ok(counts.sum::<f64>() as u64)
}

fn of_zookeeper(node: &Node) -> Result<u64> {
    let text = zookeeper::four_letters(node.port(), "mntr")?;
    let count = text.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
    Ok(count.context("it does not count")?.trim().parse::<f64>()? as u64)
}
