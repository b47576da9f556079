//! A fault of one lock must not harm the other locks of the same client: a row that a foreign
//! transaction has locked (F28), and one server of several that freezes (F29).

use anyhow::{Context, Result, bail};
use tenure_servers::wire::redis::Value;
use tenure_servers::{Node, Topology};

use super::foreign_transaction::ForeignTransaction;
use super::steps::{next_acquires, redis_command, start_both, try_to_overlap};
use crate::runner::{Runner, SERVER};

/// How many keys are tried to find one on another master.
const KEYS: u32 = 40;

/// A holds two locks. A foreign transaction locks the row of one of them for longer than the lease.
pub(super) fn blocked_row(runner: &mut Runner<'_>) -> Result<()> {
    start_both(runner)?;
    let other = format!("{}-other", runner.key);
    runner.acquire_key("A", &other, None)?;
    runner.expect_grant("A")?;
    runner.acquire_and_read("A")?;
    let mut transaction = ForeignTransaction::connect(runner)?;
    runner.begin_fault("F28", "a foreign transaction locks the row of A's other lock", SERVER);
    transaction.lock_row(&other)?;
    let survived = survives(runner)?;
    transaction.commit()?;
    runner.end_fault("the transaction ends", SERVER);
    finish(runner, survived)
}

/// A holds two locks, on two masters of a cluster. The master of one of them freezes for longer
/// than the lease.
pub(super) fn frozen_shard(runner: &mut Runner<'_>) -> Result<()> {
    start_both(runner)?;
    let cluster = runner.setup.cluster()?;
    let frozen = match cluster.topology() {
        Topology::RedisCluster => acquire_on_another_master(runner)?,
        // Each of Redlock's five servers has every lock, so that any of them will do.
        _ => cluster.node(),
    };
    runner.acquire_and_read("A")?;
    runner.begin_fault("F29", &format!("the server {} freezes", frozen.name()), SERVER);
    frozen.pause()?;
    let survived = survives(runner)?;
    frozen.resume()?;
    runner.end_fault("it goes on", SERVER);
    finish(runner, survived)
}

/// A acquires a lock whose master is not that of the lock under test. Returns that master.
fn acquire_on_another_master<'a>(runner: &mut Runner<'a>) -> Result<&'a Node> {
    let cluster = runner.setup.cluster()?;
    for node in cluster.members() {
        // As in production where locks matter: a shard that is down does not stop the others.
        redis_command(node, &["CONFIG", "SET", "cluster-require-full-coverage", "no"])?;
    }
    runner.warm_up("A")?;
    let mut key = runner.key.clone();
    runner.acquire_key("A", &key, None)?;
    runner.expect_grant("A")?;
    let tested = master_of(cluster.members(), &key)?;
    for number in 0..KEYS {
        runner.release("A")?;
        key = format!("{}-{number}", runner.key);
        runner.acquire_key("A", &key, None)?;
        runner.expect_grant("A")?;
        let master = master_of(cluster.members(), &key)?;
        if master.name() != tested.name() {
            return Ok(master);
        }
    }
    bail!("{KEYS} locks are all on one master")
}

/// The master that stores the keys of this lock.
fn master_of<'a>(mut members: impl Iterator<Item = &'a Node>, key: &str) -> Result<&'a Node> {
    let has_key = |node: &&Node| {
        let found = redis_command(node, &["KEYS", &format!("*{key}*")]);
        matches!(found, Ok(Value::List(keys)) if !keys.is_empty())
    };
    members.find(has_key).with_context(|| format!("no master has the lock {key}"))
}

/// Whether the lock that the fault does not hit is still renewed a whole lease later.
fn survives(runner: &mut Runner<'_>) -> Result<bool> {
    let survived = runner.renewed_past("A", runner.now())?;
    runner.measure("healthy locks lost", f64::from(u8::from(!survived)), "");
    runner.measure("limit: healthy locks lost", 0.0, "");
    Ok(survived)
}

fn finish(runner: &mut Runner<'_>, survived: bool) -> Result<()> {
    if survived { try_to_overlap(runner) } else { next_acquires(runner) }
}
