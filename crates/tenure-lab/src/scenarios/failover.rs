//! A Redis master that is killed before its replicas have the lock, and Sentinel that promotes one
//! of them (F05).
//!
//! Killing the master alone shows nothing: on one machine replication is faster than any kill, and
//! the kernel still sends what a killed process has written. So the connection between the master
//! and its replicas goes through a proxy of the lab, which cuts it or slows it down before the lock
//! is acquired.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tenure_servers::{Node, Proxy, Role, wait_until};

use super::steps::{both_write, next_acquires, next_works, redis_command};
use super::steps::{start_both, try_to_overlap};
use crate::runner::{Runner, SERVER};

/// Delay of a slow connection: longer than a busy machine takes from the grant to the kill of the
/// master. A grant that waits for a replica takes twice this.
const DELAY: Duration = Duration::from_millis(700);
/// Half of the time after which Sentinel repeats an election that failed.
const ELECTION: Duration = Duration::from_secs(1);
/// How long Sentinel leaves a replica alone that follows another address than the master's.
const UNDISTURBED: Duration = Duration::from_secs(600);
/// How long to wait for a replica or for Sentinel.
const LIMIT: Duration = Duration::from_secs(10);

/// The connection to the replicas was cut before A acquired the lock, and stays so when the master
/// is killed.
pub(super) fn cut(runner: &mut Runner<'_>) -> Result<()> {
    failover(runner, "the link from master to replicas is cut", Proxy::cut)
}

/// Everything reaches the replicas later: what is on its way when the master is killed is lost.
pub(super) fn slow(runner: &mut Runner<'_>) -> Result<()> {
    failover(runner, "the link from master to replicas is slow", |link| link.delay(DELAY))
}

fn failover(runner: &mut Runner<'_>, text: &str, inject: fn(&Proxy)) -> Result<()> {
    let master = master(runner)?;
    start_both(runner)?;
    let replication = proxy_replication(runner, master)?;
    // Connects, so that the next one is fast.
    runner.observe()?;
    runner.begin_fault("F05", text, SERVER);
    inject(&replication);
    let granted = runner.try_acquire("A")?.is_granted();
    if granted {
        runner.observe()?;
    } else if runner.try_acquire("B")?.is_granted() {
        // The connection was a little faster for B.
        runner.release("B")?;
    }
    kill_master(runner, master, &replication)?;
    if granted {
        runner.read("A")?;
    }
    wait_for_promotion(runner, master)?;
    if granted { try_to_overlap(runner) } else { acquire_again(runner) }
}

/// The replicas have A's grant; then the connection to them is cut, and A renews at the master
/// alone, for longer than the lease that the replicas know of. The master is killed.
pub(super) fn renewed(runner: &mut Runner<'_>) -> Result<()> {
    let master = master(runner)?;
    start_both(runner)?;
    let replication = proxy_replication(runner, master)?;
    runner.acquire_and_read("A")?;
    wait_replicated(runner, master, replication.port())?;
    let (granted, _) = runner.last_grant("A").context("the lock was not granted")?;
    runner.begin_fault("F05", "the link from master to replicas is cut", SERVER);
    replication.cut();
    // By the replicas' copy the lease is over then, whether A's renewals succeed or not.
    runner.renewed_past("A", granted)?;
    let holds = runner.still_holds("A")?;
    kill_master(runner, master, &replication)?;
    wait_for_promotion(runner, master)?;
    runner.acquire("B", None)?;
    if holds && runner.wait_granted("B")? { both_write(runner) } else { next_works(runner) }
}

/// Both clients were refused, as no replica had the grant: they acquire again.
fn acquire_again(runner: &mut Runner<'_>) -> Result<()> {
    runner.acquire("A", None)?;
    if runner.wait_granted("A")? {
        runner.read("A")?;
        runner.write_and_release("A")?;
    }
    next_acquires(runner)
}

fn master<'a>(runner: &Runner<'a>) -> Result<&'a Node> {
    runner.setup.cluster()?.leader()?.context("there is no master")
}

fn replicas<'a>(runner: &Runner<'a>, master: &'a Node) -> Result<impl Iterator<Item = &'a Node>> {
    let cluster = runner.setup.cluster()?;
    Ok(cluster.members().filter(|node| node.name() != master.name()))
}

fn kill_master(runner: &Runner<'_>, master: &Node, replication: &Proxy) -> Result<()> {
    runner.fault_once("F05", "the master is killed", SERVER);
    // First what is on its way to the replicas, then the process: the kernel would still send it.
    replication.refuse();
    Ok(master.kill()?)
}

fn wait_for_promotion(runner: &mut Runner<'_>, master: &Node) -> Result<()> {
    set_failover_timeout(runner, ELECTION)?;
    let successor = runner.setup.cluster()?.wait_leader(|node| node.name() != master.name())?;
    // Sentinels name the new master before it has changed its role.
    wait_until(LIMIT, || -> Result<()> {
        let is_master = replication_info(successor)?.contains("role:master");
        ensure!(is_master, "{} is not a master yet", successor.name());
        Ok(())
    })?;
    runner.fault_once("F05", "Sentinel promotes a replica", SERVER);
    // The lab's own connection is lost, and a sentinel may still name the old master.
    wait_until(LIMIT, || runner.observe())?;
    Ok(())
}

/// Lets the replicas follow their master through a proxy of the lab.
fn proxy_replication(runner: &Runner<'_>, master: &Node) -> Result<Proxy> {
    set_failover_timeout(runner, UNDISTURBED)?;
    let proxy = master.proxy()?;
    let port = proxy.port().to_string();
    for replica in replicas(runner, master)? {
        redis_command(replica, &["REPLICAOF", "127.0.0.1", &port])?;
    }
    wait_replicated(runner, master, proxy.port())?;
    Ok(proxy)
}

/// Waits until everything that the master has executed so far has reached its replicas by that
/// port.
fn wait_replicated(runner: &Runner<'_>, master: &Node, port: u16) -> Result<()> {
    let port = port.to_string();
    for replica in replicas(runner, master)? {
        wait_until(LIMIT, || check_replicated(replica, master, &port))?;
    }
    Ok(())
}

/// Fails unless what the master executes now has reached the replica by that port.
fn check_replicated(replica: &Node, master: &Node, port: &str) -> Result<()> {
    // A message advances the replication offset and leaves no key.
    redis_command(master, &["PUBLISH", "tenure:lab", ""])?;
    let of_replica = replication_info(replica)?;
    let of_master = replication_info(master)?;
    let offset = |info: &str, name: &str| field(info, name).parse::<u64>().unwrap_or(0);
    let connected = field(&of_replica, "master_link_status") == "up"
        && field(&of_replica, "master_port") == port;
    let replicated = offset(&of_replica, "slave_repl_offset");
    if connected && replicated > 0 && replicated >= offset(&of_master, "master_repl_offset") {
        Ok(())
    } else {
        bail!("{} does not follow its master", replica.name())
    }
}

/// A field of the output of INFO.
fn field<'i>(info: &'i str, name: &str) -> &'i str {
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_default().trim()
}

fn replication_info(node: &Node) -> Result<String> {
    let info = redis_command(node, &["INFO", "replication"])?;
    Ok(info.text().unwrap_or_default().to_owned())
}

/// How long Sentinel leaves a replica alone that follows another address, and half of how long it
/// waits before it repeats an election.
fn set_failover_timeout(runner: &Runner<'_>, timeout: Duration) -> Result<()> {
    let cluster = runner.setup.cluster()?;
    let url = cluster.url();
    let millis = timeout.as_millis().to_string();
    // The name of the master is after the last slash, before the options.
    let name = url.split('?').next().and_then(|url| url.rsplit('/').next()).unwrap_or_default();
    for sentinel in cluster.nodes().iter().filter(|node| node.role() == Role::Sentinel) {
        redis_command(sentinel, &["SENTINEL", "SET", name, "failover-timeout", &millis])?;
    }
    Ok(())
}
