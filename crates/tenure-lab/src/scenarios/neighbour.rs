//! What goes wrong with one lock of a client must not harm another one: a row that a foreign
//! transaction has locked (F28), and a shard of a Redis Cluster that is frozen (F29).

use anyhow::{Context, Result, bail};
use tenure_servers::wire::redis::{Value, ask};
use tenure_servers::{Node, Topology};

use super::blocker::Blocker;
use super::crash::take_over;
use super::server::overlap;
use crate::stage::{SERVER, Stage};

/// A holds two locks. A foreign transaction locks the row of one of them for longer than
/// the lease.
pub(super) fn blocked_row(stage: &mut Stage<'_>) -> Result<()> {
    stage.client("A")?;
    stage.client("B")?;
    let other = format!("{}-other", stage.key);
    stage.ask_for("A", &other, None)?;
    stage.expect_grant("A")?;
    stage.enter("A")?;
    let mut blocker = Blocker::open(stage)?;
    stage.fault("F28", "a foreign transaction locks the row of A's other lock", SERVER);
    blocker.block(&other)?;
    let healthy = survives(stage)?;
    blocker.unblock()?;
    stage.healed("the transaction ends", SERVER);
    go_on(stage, healthy)
}

/// A holds two locks, on two masters of a cluster. The master of one of them freezes for longer
/// than the lease.
pub(super) fn frozen_shard(stage: &mut Stage<'_>) -> Result<()> {
    stage.client("A")?;
    stage.client("B")?;
    let cluster = stage.rig.cluster()?;
    let frozen = match cluster.topology() {
        Topology::RedisCluster => other_master(stage)?,
        // Of Redlock's five any: each of them has every lock.
        _ => cluster.node(),
    };
    stage.enter("A")?;
    stage.fault("F29", &format!("the server {} freezes", frozen.name()), SERVER);
    frozen.pause()?;
    let healthy = survives(stage)?;
    frozen.resume()?;
    stage.healed("it goes on", SERVER);
    go_on(stage, healthy)
}

/// Lets A take another lock, whose master is not that of the lock under test: the master.
fn other_master<'a>(stage: &mut Stage<'a>) -> Result<&'a Node> {
    let cluster = stage.rig.cluster()?;
    for node in cluster.members() {
        // As in production where locks matter: one shard that is out does not stop the others.
        tell(node, &["CONFIG", "SET", "cluster-require-full-coverage", "no"])?;
    }
    stage.warm("A")?;
    let mut key = stage.key.clone();
    stage.ask_for("A", &key, None)?;
    stage.expect_grant("A")?;
    let home = master_of(cluster.members(), &key)?;
    for number in 0..40 {
        stage.release("A")?;
        key = format!("{}-{number}", stage.key);
        stage.ask_for("A", &key, None)?;
        stage.expect_grant("A")?;
        let master = master_of(cluster.members(), &key)?;
        if master.name() != home.name() {
            return Ok(master);
        }
    }
    bail!("forty locks are on one master")
}

/// The master that has something of this lock.
fn master_of<'a>(mut members: impl Iterator<Item = &'a Node>, key: &str) -> Result<&'a Node> {
    let has = |node: &&Node| {
        let found = tell(node, &["KEYS", &format!("*{key}*")]);
        matches!(found, Ok(Value::List(keys)) if !keys.is_empty())
    };
    members.find(has).with_context(|| format!("no master has the lock {key}"))
}

fn tell(node: &Node, words: &[&str]) -> Result<Value> {
    match ask(node.port(), words)? {
        Value::Error(reason) => bail!("{}: {reason}", words.join(" ")),
        value => Ok(value),
    }
}

/// Whether the lock that nothing is wrong with is still renewed a whole lease later.
fn survives(stage: &mut Stage<'_>) -> Result<bool> {
    let healthy = stage.renewed_past("A", stage.now())?;
    stage.measure("healthy locks lost", f64::from(u8::from(!healthy)), "");
    stage.measure("limit: healthy locks lost", 0.0, "");
    Ok(healthy)
}

fn go_on(stage: &mut Stage<'_>, healthy: bool) -> Result<()> {
    if healthy {
        return overlap(stage);
    }
    stage.ask("B", None)?;
    take_over(stage)
}
