//! What only a real MariaDB or MySQL can show, every case on both: killed connections and servers,
//! outages, lost responses, late requests, other isolation levels and time zones, foreign clients
//! with the same locks, a million old rows, missing privileges. Each case has a server of its own.
//! `cargo test -p tenure-conformance --test mysql -- faults` runs some of them.

#![expect(clippy::unwrap_used, reason = "a case that panics fails")]

mod faults;
mod foreign_clients;
mod late;
mod mixed_faults;
mod older;
mod other_modes;
mod outages;
mod tables;
mod traffic;
mod wake_ups;

use anyhow::{Context, Result};
use tenure::{Attempt, Client, Guard, Lock};
use tenure_conformance::context::soon;
use tenure_conformance::peer;
use tenure_conformance::trials::{self, Case};
use tenure_servers::wire::mysql::Mysql;
use tenure_servers::{Cluster, Proxy, Topology};

fn main() {
    if peer::play() {
        return;
    }
    let mariadb = [
        faults::CASES,
        late::CASES,
        mixed_faults::CASES,
        older::CASES,
        other_modes::CASES,
        outages::CASES,
        foreign_clients::CASES,
        tables::CASES,
        traffic::CASES,
        wake_ups::CASES,
    ]
    .concat();
    let mysql: Vec<Case> = mariadb.iter().map(on_mysql).collect();
    trials::main(4, &[&mariadb, &mysql])
}

/// The case, run on the MySQL of Oracle.
fn on_mysql(case: &Case) -> Case {
    let name = case.name.split_once("::").map_or(case.name, |(_, name)| name);
    // Once per case and process.
    let name = Box::leak(format!("mysql::oracle::{name}").into_boxed_str());
    Case { name, topology: Topology::Mysql, ..*case }
}

pub(crate) fn admin(cluster: &Cluster) -> Result<Mysql> {
    Ok(Mysql::admin(cluster.node())?)
}

/// The URL of the server, through this proxy.
pub(crate) fn through(cluster: &Cluster, proxy: &Proxy) -> String {
    cluster.url().replace(&cluster.node().address(), &proxy.address())
}

/// A status counter of the server. MariaDB and MySQL have them in different schemas.
pub(crate) fn status(admin: &mut Mysql, name: &str) -> Result<u64> {
    let sql = |schema| {
        format!("SELECT variable_value FROM {schema}.global_status WHERE variable_name='{name}'")
    };
    let rows = match admin.query(&sql("information_schema")) {
        Ok(rows) => rows,
        Err(_not_there) => admin.query(&sql("performance_schema"))?,
    };
    Ok(rows.first().context("no such counter")?.parse()?)
}

/// A client of this server with these options in its URL.
pub(crate) async fn client(cluster: &Cluster, query: &str) -> Result<Client> {
    Ok(tenure::connect(&format!("{}?{query}", cluster.url())).await?)
}

/// Acquires a lock that must come free soon.
pub(crate) async fn acquire(lock: &Lock) -> Result<Guard> {
    Ok(soon("acquire", lock.acquire()).await??)
}

pub(crate) async fn is_busy(lock: &Lock) -> Result<bool> {
    Ok(matches!(soon("try_acquire", lock.try_acquire()).await??, Attempt::Busy(_)))
}
