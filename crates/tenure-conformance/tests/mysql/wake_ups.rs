//! Processes that end right after they have passed a lock on: the next holder is woken all the
//! same. Counted at the server, because a poll would find the grant as well, only later.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::{Client, Guard};
use tenure_conformance::context::{SOON, soon, until, until_waiters};
use tenure_conformance::peer::Peer;
use tenure_conformance::server_cases;
use tenure_servers::Cluster;
use tenure_servers::wire::mysql::Mysql;

use crate::{admin, client, status};

server_cases! {
    a_process_that_ends_after_its_release_has_woken_the_next Mariadb;
    a_process_that_ends_after_an_eviction_has_woken_the_next Mariadb;
}

const MODES: [&str; 3] = ["mode=lease", "mode=session", "mode=row"];
/// Long enough for no lease to end, and no entry to be refreshed, during a case.
const TTL: Duration = Duration::from_secs(120);
/// The commands of a peer that end its process.
const ENDINGS: [&str; 2] = ["release-and-exit", "drop-and-exit"];
/// How often, because a process that ends may win the race by chance.
const ROUNDS: usize = 5;

async fn a_process_that_ends_after_its_release_has_woken_the_next(cluster: &Cluster) -> Result<()> {
    let mut log = StatementLog::start(cluster)?;
    for mode in MODES {
        log.until_waiting(0).await?;
        let next = client(cluster, mode).await?;
        for ending in ENDINGS.iter().cycle().take(2 * ROUNDS) {
            let mut holder = Peer::start(&format!("{}?{mode}", cluster.url()))?;
            holder.acquire("k", TTL)?;
            let waiting = wait_in_queue(&next, mode, &mut log).await?;
            let before = log.wake_ups()?;
            holder.send(ending)?;
            holder.finish()?;
            let guard = soon("the next grant", waiting).await???;
            let sent = log.wake_ups()? - before;
            ensure!(sent > 0, "{mode}, {ending}: the process ended without a wake-up");
            guard.release().await?;
        }
    }
    Ok(())
}

async fn a_process_that_ends_after_an_eviction_has_woken_the_next(cluster: &Cluster) -> Result<()> {
    let mut log = StatementLog::start(cluster)?;
    for mode in MODES {
        log.until_waiting(0).await?;
        let (one, next) = (client(cluster, mode).await?, client(cluster, mode).await?);
        for _ in 0..ROUNDS {
            let guard = soon("acquire", one.lock("k").ttl(TTL).acquire()).await??;
            let waiting = wait_in_queue(&next, mode, &mut log).await?;
            let before = log.wake_ups()?;
            let mut operator = Peer::start(&format!("{}?{mode}", cluster.url()))?;
            operator.send(&format!("evict-and-exit {} k", guard.token()))?;
            operator.finish()?;
            let granted = soon("the next grant", waiting).await???;
            let sent = log.wake_ups()? - before;
            ensure!(sent >= wake_connections(mode), "{mode}: {sent} wake-ups of an eviction");
            granted.release().await?;
            drop(guard);
            one.flush().await?;
        }
    }
    Ok(())
}

/// How many wake connections a holder and a waiter have: a holder has one if it waits for the end
/// of its lock.
fn wake_connections(mode: &str) -> u64 {
    if mode == "mode=lease" { 1 } else { 2 }
}

/// Waits for the lock, until the queue entry is there and the wake connections can be woken.
async fn wait_in_queue(
    next: &Client,
    mode: &str,
    log: &mut StatementLog,
) -> Result<tokio::task::JoinHandle<tenure::Result<Guard>>> {
    let lock = next.lock("k").ttl(TTL);
    let waiting = tokio::spawn(lock.acquire());
    until_waiters(&lock, 1).await?;
    log.until_waiting(wake_connections(mode)).await?;
    Ok(waiting)
}

/// What the server writes to its table of statements.
pub(crate) struct StatementLog {
    admin: Mysql,
}

impl StatementLog {
    pub(crate) fn start(cluster: &Cluster) -> Result<StatementLog> {
        let mut admin = admin(cluster)?;
        admin.query("SET GLOBAL log_output='TABLE'")?;
        admin.query("SET GLOBAL general_log=1")?;
        Ok(StatementLog { admin })
    }

    /// How many wake-ups clients have sent. MariaDB logs a packet as a whole, but counts its
    /// statements; MySQL has the counter only where it cannot be selected.
    pub(crate) fn wake_ups(&mut self) -> Result<u64> {
        if let Ok(kills) = status(&mut self.admin, "COM_KILL") {
            return Ok(kills);
        }
        let sql = "SELECT COUNT(*) FROM mysql.general_log WHERE argument LIKE 'KILL QUERY%'";
        Ok(self.admin.query(sql)?.pop().context("no count")?.parse()?)
    }

    /// Waits until so many wake connections are in the statement that can be interrupted.
    pub(crate) async fn until_waiting(&mut self, count: u64) -> Result<()> {
        let sql = "SELECT COUNT(*) FROM information_schema.processlist \
                   WHERE info LIKE 'SELECT SLEEP(%' OR info LIKE 'SELECT GET_LOCK(%,10)'";
        let mut look = || {
            let found = self.admin.query(sql)?.pop().context("no count")?.parse::<u64>()?;
            anyhow::Ok((found == count).then_some(()))
        };
        until(SOON, "wake connections", || std::future::ready(look())).await
    }
}
