//! Killed connections, a killed server, lost responses, other defaults of the server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::backend::{Backend, Claim, Owner};
use tenure::backends::Mysql;
use tenure::{Attempt, Key, LostReason};
use tenure_conformance::context::{SOON, soon, until, until_waiters};
use tenure_conformance::load::{Harm, Load};
use tenure_conformance::{clock, server_cases};
use tenure_servers::{Cluster, Direction};
use tokio::time::Instant;

use crate::{acquire, admin, client, is_busy, status, through};

server_cases! {
    a_lease_survives_the_end_of_its_connection Mariadb;
    a_named_lock_is_lost_at_once_with_its_connection Mariadb;
    a_row_lock_is_lost_soon_with_its_connection Mariadb;
    a_killed_server_neither_doubles_nor_forgets_a_grant Mariadb;
    a_lost_response_to_acquire_or_release_leaves_no_record Mariadb;
    a_statement_that_fails_in_the_middle_of_a_packet_is_repeated Mariadb;
    a_delayed_acquire_cannot_win_after_its_release Mariadb;
    a_repeated_acquire_is_not_granted_over_a_lost_connection Mariadb;
    setting_the_clock_neither_lowers_tokens_nor_loses_waiters Mariadb |options| options.clock();
    clients_agree_under_other_isolation_levels_and_time_zones Mariadb;
}

/// Kills every connection of tenure.
fn kill_all(cluster: &Cluster) -> Result<()> {
    let mut admin = admin(cluster)?;
    let sql = "SELECT id FROM information_schema.processlist WHERE id<>CONNECTION_ID()";
    for id in admin.query(sql)? {
        // It may have ended in between.
        admin.query(&format!("KILL {id}")).ok();
    }
    Ok(())
}

async fn a_lease_survives_the_end_of_its_connection(cluster: &Cluster) -> Result<()> {
    let (one, two) = (client(cluster, "").await?, client(cluster, "").await?);
    let guard = acquire(&one.lock("k").ttl(Duration::from_secs(3))).await?;
    for _ in 0..3 {
        kill_all(cluster)?;
        let lost = tokio::time::timeout(Duration::from_secs(2), guard.lost()).await;
        ensure!(lost.is_err(), "lost by the end of a connection: {lost:?}");
    }
    ensure!(is_busy(&two.lock("k")).await?);
    guard.release().await?;
    acquire(&two.lock("k")).await?.release().await?;
    Ok(())
}

async fn a_named_lock_is_lost_at_once_with_its_connection(cluster: &Cluster) -> Result<()> {
    lost_with_its_connection(cluster, "mode=session").await
}

async fn a_row_lock_is_lost_soon_with_its_connection(cluster: &Cluster) -> Result<()> {
    lost_with_its_connection(cluster, "mode=row").await
}

/// The ttl is a minute: without a push the holder would learn of the loss after twenty seconds.
async fn lost_with_its_connection(cluster: &Cluster, mode: &str) -> Result<()> {
    let (one, two) = (client(cluster, mode).await?, client(cluster, mode).await?);
    let guard = acquire(&one.lock("k").ttl(Duration::from_secs(60))).await?;
    // The engine calls `until_lost` a moment after the grant.
    let waiting = two.lock("k").ttl(Duration::from_secs(60));
    ensure!(is_busy(&waiting).await?);
    tokio::time::timeout(Duration::from_millis(500), guard.lost()).await.unwrap_err();
    let start = Instant::now();
    kill_all(cluster)?;
    let lost = soon("the loss", guard.lost()).await?;
    ensure!(start.elapsed() < Duration::from_secs(10), "noticed after {:?}", start.elapsed());
    ensure!(lost.reason() == LostReason::SessionGone, "{lost}");
    let next = acquire(&waiting).await?;
    ensure!(next.token() > guard.token());
    next.release().await?;
    Ok(())
}

async fn a_killed_server_neither_doubles_nor_forgets_a_grant(cluster: &Cluster) -> Result<()> {
    for mode in ["mode=lease", "mode=session", "mode=row"] {
        let mut locks = Vec::new();
        for _ in 0..6 {
            locks.push(client(cluster, mode).await?.lock("k").ttl(Duration::from_secs(4)));
        }
        let load = Load::start(locks, Harm::Locks);
        load.go_on(5).await?;
        cluster.node().kill()?;
        cluster.node().restart()?;
        load.go_on(5).await?;
        load.finish().await.context(mode)?;
    }
    Ok(())
}

async fn a_lost_response_to_acquire_or_release_leaves_no_record(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    for mode in ["mode=lease", "mode=session", "mode=row"] {
        let url = format!("{}?{mode}", through(cluster, &proxy));
        let (far, near) = (tenure::connect(&url).await?, client(cluster, mode).await?);
        let mut last = None;
        for nth in 1..=12 {
            proxy.drop_response(nth % 6 + 1);
            let guard = acquire(&far.lock("k").ttl(Duration::from_secs(20))).await?;
            ensure!(Some(guard.token()) > last, "{mode}: {:?} after {last:?}", guard.token());
            last = Some(guard.token());
            // If the outcome is unknown, the lock may be reported as lost: it is free either way.
            drop(guard.release().await);
            soon("flush", far.flush()).await??;
            // The ttl is 20 s: only a real release lets the other client acquire so soon.
            let next = tokio::time::timeout(Duration::from_secs(10), near.lock("k").acquire());
            let next = next.await.map_err(|_| anyhow::anyhow!("{mode}: left held, {nth}"))??;
            ensure!(Some(next.token()) > last, "{mode}: {:?} after {last:?}", next.token());
            last = Some(next.token());
            next.release().await?;
        }
        proxy.heal();
    }
    Ok(())
}

/// A foreign client keeps the row of the key locked for longer than a statement waits for it. A
/// waiter cancels its claim in a transaction, whose second statement fails then. The leases are so
/// long that only the cancelling removes the queue entry. It may take any number of attempts.
async fn a_statement_that_fails_in_the_middle_of_a_packet_is_repeated(
    cluster: &Cluster,
) -> Result<()> {
    let ttl = Duration::from_secs(120);
    let lock = client(cluster, "").await?.lock("k").ttl(ttl);
    let guard = acquire(&lock).await?;
    let waiting = client(cluster, "").await?;
    let waiter = tokio::spawn(waiting.lock("k").ttl(ttl).acquire());
    until_waiters(&lock, 1).await?;

    let (mut foreign, mut watcher) = (admin(cluster)?, admin(cluster)?);
    foreign.query("START TRANSACTION")?;
    foreign.query("SELECT k FROM tenure_lease FOR UPDATE")?;
    let before = status(&mut watcher, "INNODB_ROW_LOCK_WAITS")?;
    waiter.abort();
    let mut attempted_twice = || {
        let waits = status(&mut watcher, "INNODB_ROW_LOCK_WAITS")? - before;
        anyhow::Ok((waits >= 2).then_some(()))
    };
    until(SOON, "a second attempt", || std::future::ready(attempted_twice())).await?;
    foreign.query("COMMIT")?;
    soon("the end of the claim", waiting.flush()).await??;
    until_waiters(&lock, 0).await?;
    guard.release().await?;
    Ok(())
}

async fn a_delayed_acquire_cannot_win_after_its_release(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    for mode in ["mode=lease", "mode=session", "mode=row"] {
        let url = format!("{}?{mode}", through(cluster, &proxy));
        let (far, near) = (tenure::connect(&url).await?, client(cluster, mode).await?);
        acquire(&near.lock("k")).await?.release().await?;
        proxy.cut();
        let attempt =
            soon("try_acquire", far.lock("k").ttl(Duration::from_secs(8)).try_acquire()).await?;
        ensure!(attempt.is_err(), "{mode}: a response through a cut proxy");
        proxy.heal();
        soon("flush", far.flush()).await??;
        let free = near.lock("k").status().await?.is_none();
        ensure!(free, "{mode}: the late request acquired the lock");
        acquire(&near.lock("k")).await?.release().await?;
    }
    Ok(())
}

/// The end of the connection does not reach the client either: only a response proves that it holds
/// the lock.
async fn a_repeated_acquire_is_not_granted_over_a_lost_connection(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    for mode in ["session", "row"] {
        let url = format!("{}?mode={mode}", through(cluster, &proxy));
        let backend = Mysql::open(&url).await?;
        let claim = Claim::new(Key::new(mode)?, Owner::random(), Duration::from_secs(20));
        ensure!(backend.try_acquire(&claim).await?.granted().is_ok(), "{mode}: not free");
        proxy.cut_one_way(Direction::ToClient);
        kill_all(cluster)?;
        let again = tokio::time::timeout(Duration::from_secs(1), backend.try_acquire(&claim));
        let granted = matches!(again.await, Ok(Ok(Attempt::Granted(_))));
        ensure!(!granted, "{mode}: granted over a lost connection");
        proxy.heal();
    }
    Ok(())
}

async fn setting_the_clock_neither_lowers_tokens_nor_loses_waiters(
    cluster: &Cluster,
) -> Result<()> {
    for mode in ["lease", "session", "row"] {
        let url = format!("{}?mode={mode}", cluster.url());
        clock::set(cluster, &url, mode != "lease").await.context(mode)?;
    }
    Ok(())
}

/// Clients that connect under different defaults of the server.
async fn clients_agree_under_other_isolation_levels_and_time_zones(
    cluster: &Cluster,
) -> Result<()> {
    let mut admin = admin(cluster)?;
    let mut clients = Vec::new();
    for (level, zone) in
        [("REPEATABLE-READ", "+13:00"), ("SERIALIZABLE", "-11:00"), ("READ-UNCOMMITTED", "+00:00")]
    {
        let words = level.replace('-', " ");
        admin.query(&format!("SET GLOBAL TRANSACTION ISOLATION LEVEL {words}"))?;
        admin.query(&format!("SET GLOBAL time_zone='{zone}'"))?;
        admin.query("SET GLOBAL sql_mode='ANSI,NO_BACKSLASH_ESCAPES'")?;
        clients.push(client(cluster, "").await?);
    }
    let guard = acquire(&clients[0].lock("k").ttl(Duration::from_secs(60))).await?;
    for other in &clients[1..] {
        let holding = other.lock("k").status().await?.unwrap();
        let left = holding.holder().ttl_left.unwrap();
        ensure!(left > Duration::from_secs(40) && left <= Duration::from_secs(60), "{left:?}");
        ensure!(is_busy(&other.lock("k")).await?);
    }
    guard.release().await?;
    let locks = clients.iter().cycle().take(9).map(|client| client.lock("race"));
    let load = Load::start(locks, Harm::Time);
    load.go_on(40).await?;
    load.finish().await
}
