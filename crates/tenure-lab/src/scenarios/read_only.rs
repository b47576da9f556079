//! A server that becomes read-only, as after a failover, while its name is pointed at another
//! (F30).

use anyhow::{Context, Result, bail};
use tenure_servers::wire::mysql::Mysql;
use tenure_servers::{Node, Options};

use super::steps::{one_after_the_other, redis_command};
use crate::forwarder::Forwarder;
use crate::runner::{Runner, SERVER};

/// A and B have connections to a server that is demoted: it refuses writes, and new connections
/// reach the server that took over. The lock is free. Both clients have to get it in turn.
pub(super) fn read_only(runner: &mut Runner<'_>) -> Result<()> {
    let cluster = runner.setup.cluster()?;
    let successor = tenure_servers::start(cluster.topology(), &Options::default())?;
    let mut demoted = DemotedServer::prepare(cluster.node(), successor.node())?;
    // The successor has the tables of its predecessor.
    runner.prepare_server(&runner.setup.route_to(&successor.node().address()).url)?;
    let forwarder = Forwarder::start(cluster.node().port())?;
    let other_key = format!("{}-before", runner.key);
    for name in ["A", "B"] {
        let route = runner.setup.route_to(&forwarder.address());
        runner.start_client_on(name, route, &[])?;
        // Another lock, so that everything is connected; the successor does not have it.
        runner.acquire_key(name, &other_key, None)?;
        runner.expect_grant(name)?;
        runner.release(name)?;
    }
    let text = "the server becomes read-only, and its name is pointed at another";
    runner.begin_fault("F30", text, SERVER);
    forwarder.forward_to(successor.node().port());
    demoted.demote(cluster.node(), successor.node())?;
    runner.acquire("A", None)?;
    one_after_the_other(runner)
}

/// The server that is demoted, with the operator's connection to it.
enum DemotedServer {
    Redis,
    Mysql(Mysql),
}

impl DemotedServer {
    /// Prepares the failover: the successor gets the same password.
    fn prepare(node: &Node, successor: &Node) -> Result<DemotedServer> {
        let url = node.url();
        let password = node.password().unwrap_or_default();
        Ok(match url.split(':').next().unwrap_or_default() {
            "redis" => {
                redis_command(successor, &["CONFIG", "SET", "requirepass", &password])?;
                redis_command(node, &["CONFIG", "SET", "masterauth", &password])?;
                DemotedServer::Redis
            }
            "mysql" => {
                let same = format!("set password = password('{password}')");
                Mysql::connect(successor.port())?.query(&same)?;
                let mut operator = Mysql::connect(node.port())?;
                // A read-only server still accepts writes of administrators, which the lab's
                // clients are. New connections no longer have that right; this one keeps it.
                let user = operator.query("select current_user()")?.pop();
                let user = user.context("no row for the current user")?;
                let (name, host) = user.split_once('@').context("a user without a host")?;
                let sql = format!("revoke read_only admin on *.* from '{name}'@'{host}'");
                operator.query(&sql)?;
                DemotedServer::Mysql(operator)
            }
            other => bail!("{other} cannot be made read-only"),
        })
    }

    fn demote(&mut self, node: &Node, successor: &Node) -> Result<()> {
        match self {
            DemotedServer::Redis => {
                let port = successor.port().to_string();
                redis_command(node, &["REPLICAOF", "127.0.0.1", &port])?;
            }
            DemotedServer::Mysql(operator) => drop(operator.query("set global read_only = 1")?),
        }
        Ok(())
    }
}
