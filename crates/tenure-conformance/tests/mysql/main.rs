//! What only a real MariaDB can show: killed connections and servers, lost answers, other isolation
//! levels and time zones, strangers on the same locks, a million old rows, missing rights. Each
//! case has a server of its own, to hurt it.
//! `cargo test -p tenure-conformance --test mysql -- faults` runs some of them.

#![expect(clippy::unwrap_used, reason = "a case that panics fails")]

mod faults;
mod strangers;
mod tables;

use anyhow::Result;
use tenure::{Attempt, Client, Guard, Lock};
use tenure_conformance::bench::soon;
use tenure_conformance::trials;
use tenure_servers::Cluster;
use tenure_servers::wire::mysql::Mysql;

fn main() {
    trials::main(4, &[faults::CASES, strangers::CASES, tables::CASES])
}

pub(crate) fn admin(cluster: &Cluster) -> Result<Mysql> {
    Ok(Mysql::connect(cluster.node().port())?)
}

/// A client of this server with these options in its URL.
pub(crate) async fn client(cluster: &Cluster, query: &str) -> Result<Client> {
    Ok(tenure::connect(&format!("{}?{query}", cluster.url())).await?)
}

/// Takes a lock that must come free soon.
pub(crate) async fn take(lock: &Lock) -> Result<Guard> {
    Ok(soon("acquire", lock.acquire()).await??)
}

pub(crate) async fn is_busy(lock: &Lock) -> Result<bool> {
    Ok(matches!(soon("try_acquire", lock.try_acquire()).await??, Attempt::Busy(_)))
}
