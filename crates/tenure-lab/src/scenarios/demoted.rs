//! A server that is turned read-only, as after a failover, while its name leads to another (F30).

use anyhow::{Context, Result, bail};
use tenure_servers::wire::mysql::Mysql;
use tenure_servers::wire::redis;
use tenure_servers::{Node, Options};

use super::crash::take_over;
use crate::detour::Detour;
use crate::stage::{SERVER, Stage};

/// A and B have connections to a server that is demoted: it refuses to write, and whoever connects
/// anew reaches the server that took over. Nobody holds the lock. Both have to get it in turn.
pub(super) fn read_only(stage: &mut Stage<'_>) -> Result<()> {
    let cluster = stage.rig.cluster()?;
    let successor = tenure_servers::start(cluster.topology(), &Options::default())?;
    let mut old = Old::of(cluster.node(), successor.node())?;
    // What took over has the tables of the one before it.
    stage.prepare(&stage.rig.link_at(&successor.node().address()).url)?;
    let detour = Detour::start(cluster.node().port())?;
    let another = format!("{}-before", stage.key);
    for name in ["A", "B"] {
        let link = stage.rig.link_at(&detour.address());
        stage.client_on(name, link, &[])?;
        // Another lock, so that everything is connected: the successor knows nothing of it.
        stage.ask_for(name, &another, None)?;
        stage.expect_grant(name)?;
        stage.release(name)?;
    }
    stage.fault("F30", "the server turns read-only, and its name leads to another", SERVER);
    detour.lead_to(successor.node().port());
    old.demote(successor.node())?;
    stage.ask("A", None)?;
    if !stage.obtain("A")? {
        return Ok(());
    }
    stage.read("A")?;
    stage.finish_work("A")?;
    stage.ask("B", None)?;
    take_over(stage)
}

/// The server that is demoted, and the operator's connection to it.
enum Old {
    Redis(u16),
    Mysql(Mysql),
}

impl Old {
    /// The successor gets the same password, as a server that took over would have it.
    fn of(node: &Node, successor: &Node) -> Result<Old> {
        let (server, password) = (node.url(), node.password().unwrap_or_default());
        Ok(match server.split(':').next().unwrap_or_default() {
            "redis" => {
                redis::ask(successor.port(), &["CONFIG", "SET", "requirepass", &password])?;
                redis::ask(node.port(), &["CONFIG", "SET", "masterauth", &password])?;
                Old::Redis(node.port())
            }
            "mysql" => {
                let same = format!("set password = password('{password}')");
                Mysql::connect(successor.port())?.query(&same)?;
                let mut operator = Mysql::connect(node.port())?;
                // The lab's clients are administrators, whom a read-only server obeys: from now on
                // they are not, while this connection stays what it is.
                let who = operator.query("select current_user()")?.pop().context("nobody")?;
                let (name, host) = who.split_once('@').context("a user without a host")?;
                let sql = format!("revoke read_only admin on *.* from '{name}'@'{host}'");
                operator.query(&sql)?;
                Old::Mysql(operator)
            }
            other => bail!("{other} cannot be turned read-only"),
        })
    }

    fn demote(&mut self, successor: &Node) -> Result<()> {
        match self {
            Old::Redis(port) => {
                let words = ["REPLICAOF", "127.0.0.1", &successor.port().to_string()];
                redis::ask(*port, &words)?;
            }
            Old::Mysql(operator) => drop(operator.query("set global read_only = 1")?),
        }
        Ok(())
    }
}
