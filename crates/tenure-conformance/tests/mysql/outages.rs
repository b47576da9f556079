//! Outages, demotions and foreign clients that keep a lock: what remains at the server, and how
//! many statements are sent.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::{Attempt, ErrorKind, Lock};
use tenure_conformance::context::{SOON, soon, until, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::wire::mysql::Mysql;
use tenure_servers::{Cluster, Node};

use crate::{acquire, admin, client, is_busy, status, through};

const TTL: Duration = Duration::from_secs(2);

server_cases! {
    a_release_that_failed_in_an_outage_is_repeated_afterwards Mariadb;
    an_acquire_that_failed_in_an_outage_leaves_no_record Mariadb;
    every_key_can_be_acquired_after_a_server_was_killed Mariadb;
    a_waiter_behind_a_foreign_lock_sends_few_statements Mariadb;
    connections_to_a_server_that_became_read_only_are_dropped Mariadb;
    a_wake_connection_whose_statements_fail_sends_few_statements Mariadb;
    a_row_locked_for_long_costs_no_other_named_lock Mariadb;
}

/// The lock must be acquired within two ttls, and some time for a busy machine.
async fn usable(lock: &Lock, who: &str) -> Result<()> {
    let attempt = lock.acquire_within(2 * TTL + Duration::from_secs(3)).await;
    match attempt.with_context(|| who.to_owned())? {
        Attempt::Granted(guard) => Ok(guard.release().await.map(drop)?),
        Attempt::Busy(busy) => anyhow::bail!("{who}: busy for ever: {busy:?}"),
    }
}

async fn a_release_that_failed_in_an_outage_is_repeated_afterwards(
    cluster: &Cluster,
) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    for mode in ["mode=lease", "mode=session", "mode=row"] {
        let url = format!("{}?{mode}", through(cluster, &proxy));
        let (far, near) = (tenure::connect(&url).await?, client(cluster, mode).await?);
        let lock = far.lock("k").ttl(TTL);
        let guard = acquire(&lock).await?;
        proxy.cut();
        let released = soon("release", guard.release()).await?;
        ensure!(released.is_err(), "{mode}: a response through a cut proxy");
        tokio::time::sleep(TTL * 3 / 2).await;
        proxy.heal();
        usable(&lock, &format!("{mode}: the same client")).await?;
        usable(&near.lock("k"), &format!("{mode}: another client")).await?;
    }
    Ok(())
}

async fn an_acquire_that_failed_in_an_outage_leaves_no_record(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    for mode in ["mode=lease", "mode=session", "mode=row"] {
        let url = format!("{}?{mode}", through(cluster, &proxy));
        let (far, near) = (tenure::connect(&url).await?, client(cluster, mode).await?);
        let lock = far.lock("k").ttl(TTL);
        usable(&lock, mode).await?;
        proxy.cut();
        let attempt = soon("try_acquire", lock.try_acquire()).await?;
        ensure!(attempt.is_err(), "{mode}: a response through a cut proxy");
        tokio::time::sleep(TTL * 3 / 2).await;
        proxy.heal();
        usable(&lock, &format!("{mode}: the same client")).await?;
        usable(&near.lock("k"), &format!("{mode}: another client")).await?;
    }
    Ok(())
}

async fn every_key_can_be_acquired_after_a_server_was_killed(cluster: &Cluster) -> Result<()> {
    for mode in ["mode=lease", "mode=session", "mode=row"] {
        let (one, two) = (client(cluster, mode).await?, client(cluster, mode).await?);
        let lock = one.lock("k").ttl(TTL);
        usable(&lock, mode).await?;
        cluster.node().kill()?;
        let attempt = soon("try_acquire", lock.try_acquire()).await?;
        ensure!(attempt.is_err(), "{mode}: a response of a killed server");
        tokio::time::sleep(TTL * 3 / 2).await;
        cluster.node().restart()?;
        usable(&lock, &format!("{mode}: the same client")).await?;
        usable(&two.lock("k"), &format!("{mode}: another client")).await?;
    }
    Ok(())
}

/// Statements per second over some seconds, without those that count them.
async fn rate(counter: &mut Mysql) -> Result<f64> {
    let seconds = 4;
    let before = status(counter, "QUESTIONS")?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    Ok((status(counter, "QUESTIONS")?.saturating_sub(before + 2)) as f64 / seconds as f64)
}

async fn a_waiter_behind_a_foreign_lock_sends_few_statements(cluster: &Cluster) -> Result<()> {
    let name = "CONCAT('tenure:',LEFT(SHA2(CONCAT(HEX('test'),'/',HEX('k')),256),40))";
    let row = "SELECT k FROM tenure_row_lock WHERE k='k' FOR UPDATE";
    let (get, release) = (format!("SELECT GET_LOCK({name},0)"), format!("DO RELEASE_LOCK({name})"));
    for (mode, get, release) in [("mode=session", &*get, &*release), ("mode=row", row, "COMMIT")] {
        let locks = client(cluster, mode).await?;
        acquire(&locks.lock("k")).await?.release().await?;
        let (mut foreign, mut counter) = (admin(cluster)?, admin(cluster)?);
        foreign.query("START TRANSACTION")?;
        foreign.query(get)?;
        let waiting = tokio::spawn(locks.lock("k").acquire());
        tokio::time::sleep(Duration::from_secs(3)).await;
        let rate = rate(&mut counter).await?;
        ensure!(rate < 25.0, "{mode}: {rate} statements a second");
        ensure!(!waiting.is_finished(), "{mode}: two clients hold one lock");
        foreign.query(release)?;
        soon("the waiter's grant", waiting).await???.release().await?;
    }
    Ok(())
}

/// A user with all privileges on the tables and no others, as an application has.
fn make_app(admin: &mut Mysql, limits: &str) -> Result<()> {
    for sql in [
        "CREATE USER 'app'@'127.0.0.1' IDENTIFIED BY 'secret'",
        "GRANT ALL ON test.* TO 'app'@'127.0.0.1'",
    ] {
        admin.query(sql)?;
    }
    if !limits.is_empty() {
        admin.query(&format!("ALTER USER 'app'@'127.0.0.1' WITH {limits}"))?;
    }
    Ok(())
}

fn app_url(node: &Node, query: &str) -> String {
    format!("mysql://app:secret@{}/test?{query}", node.address())
}

async fn connections_to_a_server_that_became_read_only_are_dropped(
    cluster: &Cluster,
) -> Result<()> {
    let mut admin = admin(cluster)?;
    make_app(&mut admin, "")?;
    let count = "SELECT COUNT(*) FROM information_schema.processlist WHERE user='app'";
    for mode in ["mode=lease&wake=poll", "mode=session&wake=poll", "mode=row&wake=poll"] {
        let url = app_url(cluster.node(), mode);
        let locks = soon("connect", tenure::connect(&url)).await??;
        let lock = locks.lock("k").ttl(TTL);
        acquire(&lock).await?.release().await?;
        ensure!(admin.query(count)? != ["0"], "{mode}: not connected");
        admin.query("SET GLOBAL read_only=1")?;
        let error = soon("try_acquire", lock.try_acquire()).await?.unwrap_err();
        ensure!(error.kind() == ErrorKind::Unavailable, "{mode}: {error:?}");
        // Also those that are idle.
        let left = || {
            let rows = admin.query(count);
            async { Ok((rows? == ["0"]).then_some(())) }
        };
        until(SOON, "the connections to end", left).await.context(mode)?;
        let error = soon("connect", tenure::connect(&url)).await?.unwrap_err();
        ensure!(error.kind() == ErrorKind::Unavailable, "{mode}: {error:?}");
        ensure!(error.to_string().contains("read-only"), "{mode}: {error}");
        admin.query("SET GLOBAL read_only=0")?;
        acquire(&lock).await.context(mode)?.release().await?;
    }
    Ok(())
}

/// The server refuses every statement of this user at once, and keeps its connections open.
async fn a_wake_connection_whose_statements_fail_sends_few_statements(
    cluster: &Cluster,
) -> Result<()> {
    let mut admin = admin(cluster)?;
    let holder = client(cluster, "").await?;
    let guard = acquire(&holder.lock("k")).await?;
    make_app(&mut admin, "MAX_QUERIES_PER_HOUR 200")?;
    let locks = tenure::connect(&app_url(cluster.node(), "")).await?;
    let waiting = tokio::spawn(locks.lock("k").acquire());
    until_waiters(&holder.lock("k"), 1).await?;
    let wake_connection = "SELECT COUNT(*) FROM information_schema.processlist \
                    WHERE user='app' AND (info LIKE '%GET_LOCK%' OR info LIKE '%SLEEP%')";
    let up = || {
        let rows = admin.query(wake_connection);
        async { Ok((rows? == ["1"]).then_some(())) }
    };
    until(SOON, "the wake connection", up).await?;
    while soon("status", locks.lock("k").status()).await?.is_ok() {}
    let kill = "SELECT id FROM information_schema.processlist WHERE user='app'";
    for id in admin.query(kill)? {
        admin.query(&format!("KILL QUERY {id}")).ok();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let rate = rate(&mut admin).await?;
    ensure!(rate < 60.0, "{rate} statements a second");
    waiting.abort();
    guard.release().await?;
    Ok(())
}

/// A foreign transaction holds the record of one key for longer than any request may take.
async fn a_row_locked_for_long_costs_no_other_named_lock(cluster: &Cluster) -> Result<()> {
    let locks = client(cluster, "mode=session").await?;
    acquire(&locks.lock("blocked")).await?.release().await?;
    let held = acquire(&locks.lock("held").ttl(Duration::from_secs(4))).await?;
    let mut foreign = admin(cluster)?;
    foreign.query("START TRANSACTION")?;
    foreign.query("SELECT k FROM tenure_session WHERE k='blocked' FOR UPDATE")?;
    let blocked = locks.lock("blocked").ttl(Duration::from_secs(4));
    let attempt = blocked.acquire_within(Duration::from_secs(9)).await;
    ensure!(!matches!(attempt, Ok(Attempt::Granted(_))), "granted under a foreign lock");
    held.check().context("lost by the blocked request of another key")?;
    foreign.query("COMMIT")?;
    soon("release", held.release()).await??;
    ensure!(!is_busy(&locks.lock("held")).await?);
    Ok(())
}
