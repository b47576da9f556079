//! A master that dies before its replicas have heard of the lock (F05), and Sentinel that promotes
//! one of them.
//!
//! Killing alone proves nothing: on one machine, replication is faster than any kill, and the
//! kernel still sends what a dead process has written. So the link between the master and its
//! replicas goes through a proxy of the lab's, and is cut or slow before the lock is taken.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tenure_servers::wire::redis::{Value, ask};
use tenure_servers::{Node, Proxy, Role, wait_until};

use super::crash::take_over;
use super::server::{both_write, overlap};
use crate::stage::{SERVER, Stage};

/// The link was cut before A asked, and stays so when the master dies.
pub(super) fn cut(stage: &mut Stage<'_>) -> Result<()> {
    failover(stage, "the link from master to replicas is cut", Proxy::cut)
}

/// Everything arrives later: what is under way when the master dies is lost with it.
pub(super) fn slow(stage: &mut Stage<'_>) -> Result<()> {
    failover(stage, "the link from master to replicas is slow", |link| link.delay(SLOW))
}

fn failover(stage: &mut Stage<'_>, text: &str, hurt: fn(&Proxy)) -> Result<()> {
    let cluster = stage.rig.cluster()?;
    let master = cluster.leader()?.context("no master")?;
    stage.client("A")?;
    stage.client("B")?;
    let link = through_proxy(stage, master)?;
    // So that the next look is fast.
    stage.look()?;
    stage.fault("F05", text, SERVER);
    hurt(&link);
    let granted = stage.attempt("A")?.is_granted();
    match granted {
        true => drop(stage.look()?),
        // B fares no better, unless the link is a little faster for it.
        false if stage.attempt("B")?.is_granted() => drop(stage.release("B")?),
        false => {}
    }
    die(stage, master, &link)?;
    if granted {
        stage.read("A")?;
    }
    promote(stage, master)?;
    match granted {
        true => overlap(stage),
        false => ask_again(stage),
    }
}

/// The replicas have A's grant; then the link is cut, and A renews at the master alone, for longer
/// than the lease that the replicas know of. The master dies.
pub(super) fn renewed(stage: &mut Stage<'_>) -> Result<()> {
    let master = stage.rig.cluster()?.leader()?.context("no master")?;
    stage.client("A")?;
    stage.client("B")?;
    let link = through_proxy(stage, master)?;
    stage.enter("A")?;
    heard(stage, master, link.port())?;
    let (granted, _) = stage.granted("A").context("nothing was granted")?;
    stage.fault("F05", "the link from master to replicas is cut", SERVER);
    link.cut();
    // By the replicas' copy the lease is over then, whatever A has been told.
    stage.renewed_past("A", granted)?;
    let holds = stage.looks_again("A")?;
    die(stage, master, &link)?;
    promote(stage, master)?;
    stage.ask("B", None)?;
    match holds && stage.obtain("B")? {
        true => both_write(stage),
        false => take_over(stage),
    }
}

fn die(stage: &Stage<'_>, master: &Node, link: &Proxy) -> Result<()> {
    stage.blow("F05", "the master dies", SERVER);
    // First what is under way, then the process: the kernel would still send it.
    link.refuse();
    Ok(master.kill()?)
}

fn promote(stage: &mut Stage<'_>, master: &Node) -> Result<()> {
    patience(stage, ELECTION)?;
    let heir = stage.rig.cluster()?.wait_leader(|node| node.name() != master.name())?;
    wait_role(heir)?;
    stage.blow("F05", "Sentinel promotes a replica", SERVER);
    // The lab's own connection is gone, and one sentinel of three may still name the old master.
    wait_until(Duration::from_secs(10), || stage.look())?;
    Ok(())
}

/// Both were told that nothing came of it: no replica had heard.
fn ask_again(stage: &mut Stage<'_>) -> Result<()> {
    stage.ask("A", None)?;
    if stage.obtain("A")? {
        stage.read("A")?;
        stage.finish_work("A")?;
    }
    stage.ask("B", None)?;
    take_over(stage)
}

/// Lets the replicas follow their master through a link of the lab's.
fn through_proxy(stage: &Stage<'_>, master: &Node) -> Result<Proxy> {
    // Sentinels put a replica right that follows another address for as long as this.
    patience(stage, Duration::from_secs(600))?;
    let link = master.proxy()?;
    let port = link.port().to_string();
    let replicas = stage.rig.cluster()?.members().filter(|node| node.name() != master.name());
    for replica in replicas {
        tell(replica, &["REPLICAOF", "127.0.0.1", &port])?;
    }
    heard(stage, master, link.port())?;
    Ok(link)
}

/// Waits until all that the master has said so far has reached its replicas by that port.
fn heard(stage: &Stage<'_>, master: &Node, port: u16) -> Result<()> {
    let port = port.to_string();
    for replica in stage.rig.cluster()?.members().filter(|node| node.name() != master.name()) {
        wait_until(Duration::from_secs(10), || follows(replica, master, &port))?;
    }
    Ok(())
}

/// How long sentinels leave a replica alone that follows another address, and half of how long they
/// wait before they try an election again.
fn patience(stage: &Stage<'_>, patience: Duration) -> Result<()> {
    let cluster = stage.rig.cluster()?;
    let (url, millis) = (cluster.url(), patience.as_millis().to_string());
    // After the last slash, and before the options.
    let name = url.split('?').next().and_then(|url| url.rsplit('/').next()).unwrap_or_default();
    for sentinel in cluster.nodes().iter().filter(|node| node.role() == Role::Sentinel) {
        tell(sentinel, &["SENTINEL", "SET", name, "failover-timeout", &millis])?;
    }
    Ok(())
}

/// Whether what the master says now reaches the replica by that port.
fn follows(replica: &Node, master: &Node, port: &str) -> Result<()> {
    // A message moves the stream on and leaves no key behind.
    tell(master, &["PUBLISH", "tenure:lab", ""])?;
    let (its, own) = (replication(replica)?, replication(master)?);
    let of = |info: &str, name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    };
    let number = |text: String| text.parse::<u64>().unwrap_or(0);
    let up = of(&its, "master_link_status") == "up" && of(&its, "master_port") == port;
    let heard = number(of(&its, "slave_repl_offset"));
    match up && heard > 0 && heard >= number(of(&own, "master_repl_offset")) {
        true => Ok(()),
        false => bail!("{} does not follow", replica.name()),
    }
}

fn replication(node: &Node) -> Result<String> {
    let info = tell(node, &["INFO", "replication"])?;
    Ok(info.text().unwrap_or_default().to_owned())
}

/// Sentinels name the new master before it is one.
fn wait_role(node: &Node) -> Result<()> {
    wait_until(Duration::from_secs(10), || match replication(node)?.contains("role:master") {
        true => Ok(()),
        false => bail!("{} is not a master yet", node.name()),
    })
}

fn tell(node: &Node, words: &[&str]) -> Result<Value> {
    match ask(node.port(), words)? {
        Value::Error(reason) => bail!("{}: {reason}", words.join(" ")),
        value => Ok(value),
    }
}

/// Longer than a busy machine takes from the grant to the death of the master; a grant that waits
/// for a replica takes twice this.
const SLOW: Duration = Duration::from_millis(700);
/// Two elections at once are tried again after twice this.
const ELECTION: Duration = Duration::from_secs(1);
