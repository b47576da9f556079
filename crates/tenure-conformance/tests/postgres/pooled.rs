//! `pooler=yes`: nothing can be set in a session, and every guarantee has to hold all the same.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tenure::backend::Backend;
use tenure::backends::Postgres;
use tenure::{Attempt, ErrorKind, Severity};
use tenure_conformance::context::{SOON, soon, until};
use tenure_servers::Cluster;
use tenure_servers::wire::postgres::Postgres as Wire;

use crate::{cases, claim, connect, own_server, password, role, sql, until_response};

cases! {
    a_grant_survives_a_crash_where_commits_are_not_waited_for,
    a_standby_that_is_configured_is_waited_for,
    a_locked_row_does_not_accumulate_server_processes,
    a_request_that_timed_out_is_cancelled_at_the_server,
    a_server_that_becomes_read_only_is_no_longer_used,
    a_demoted_server_is_no_longer_used,
}

/// Changes settings of the whole server; they are in force when this returns.
fn configure(cluster: &Cluster, settings: &[(&str, &str)]) -> Result<()> {
    for (name, value) in settings {
        sql(cluster, &format!("ALTER SYSTEM SET {name} = '{value}'"))?;
    }
    sql(cluster, "SELECT pg_reload_conf()")?;
    let wrong = |(name, value): &(&str, &str)| {
        let now =
            format!("SELECT 1 FROM pg_settings WHERE name = '{name}' AND setting = '{value}'");
        sql(cluster, &now).is_ok_and(|rows| rows.is_empty())
    };
    let end = Instant::now() + SOON;
    while settings.iter().any(wrong) {
        ensure!(Instant::now() < end, "{settings:?} did not come into force");
    }
    Ok(())
}

async fn a_grant_survives_a_crash_where_commits_are_not_waited_for() -> Result<()> {
    for pooler in ["no", "yes"] {
        let cluster = own_server()?;
        let url = format!("{}?pooler={pooler}", cluster.url());
        drop(Postgres::open(&url).await?);
        configure(&cluster, &[("synchronous_commit", "off"), ("wal_writer_delay", "10000")])?;
        let backend = Postgres::open(&url).await?;
        let findings = soon("doctor", backend.doctor()).await??;
        let found = |detail: &str| findings.iter().any(|one| one.detail.contains(detail));
        ensure!(found("fsync") || found("tenure's own commits are waited for"), "{findings:?}");
        let (held, other) = (claim("held")?, claim("other")?);
        let first = backend.try_acquire(&held).await?.granted()?.token;
        let last = backend.try_acquire(&other).await?.granted()?.token;
        cluster.node().kill()?;
        cluster.node().restart()?;
        let rival = claim("held")?;
        let attempt = until_response(|| backend.try_acquire(&rival)).await?;
        ensure!(matches!(attempt, Attempt::Busy(_)), "pooler={pooler}: {first} was lost");
        let next = claim("next")?;
        let next = until_response(|| backend.try_acquire(&next)).await?.granted()?.token;
        ensure!(next > last, "pooler={pooler}: token {next} after {last}");
    }
    Ok(())
}

/// Commits have to wait for a standby that is not connected: the primary alone must not grant.
async fn a_standby_that_is_configured_is_waited_for() -> Result<()> {
    for (pooler, level) in [("no", "local"), ("yes", "local"), ("no", "remote_write")] {
        let cluster = own_server()?;
        let url = format!("{}?pooler={pooler}", cluster.url());
        drop(Postgres::open(&url).await?);
        let level = ("synchronous_commit", level);
        configure(&cluster, &[level, ("synchronous_standby_names", "missing")])?;
        let claim = claim("k")?;
        let backend = Postgres::open(&url).await?;
        let taking = tokio::time::timeout(Duration::from_secs(1), backend.try_acquire(&claim));
        let granted = matches!(taking.await, Ok(Ok(_)));
        ensure!(!granted, "pooler={pooler}, {level:?}: granted without the standby");
    }
    Ok(())
}

/// A forgotten transaction has a row locked, or a whole table, and one client waits for that.
async fn a_locked_row_does_not_accumulate_server_processes() -> Result<()> {
    for lock in ["SELECT 1 FROM tenure_lease FOR UPDATE", "LOCK TABLE tenure_lease"] {
        let cluster = own_server()?;
        let client = connect(&format!("{}?pooler=yes&outage=1m", cluster.url())).await?;
        let guard = client.lock("k").without_renewal().acquire().await?;
        let mut other = Wire::connect(cluster.node().port())?;
        other.query(&format!("BEGIN; {lock}"))?;
        let waiter = tokio::spawn(client.lock("k").acquire());
        let end = Instant::now() + Duration::from_secs(13);
        let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure'";
        while Instant::now() < end {
            let processes: usize = sql(&cluster, count)?[0].parse()?;
            ensure!(processes <= 2, "{lock}: {processes} server processes for one waiter");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        other.query("ROLLBACK")?;
        waiter.abort();
        drop(guard);
    }
    Ok(())
}

/// The server process hangs in the statement for longer than the client waits for it.
async fn a_request_that_timed_out_is_cancelled_at_the_server() -> Result<()> {
    for pooler in ["no", "yes"] {
        let cluster = own_server()?;
        let backend = Postgres::open(&format!("{}?pooler={pooler}", cluster.url())).await?;
        sql(
            &cluster,
            "CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               PERFORM pg_sleep(60); RETURN NEW; END $$;
             CREATE TRIGGER hang BEFORE INSERT ON tenure_lease
               FOR EACH ROW EXECUTE FUNCTION hang()",
        )?;
        let response = soon("a response", backend.try_acquire(&claim("k")?)).await?;
        let kind = response.map(drop).map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Unavailable), "{kind:?}");
        let hanging = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        until(
            Duration::from_secs(2),
            &format!("pooler={pooler}: the end of the request"),
            || async { Ok(sql(&cluster, hanging)?.is_empty().then_some(())) },
        )
        .await?;
        // Its connection is closed now, and not when it is replaced: the server keeps what a
        // session has for as long as that.
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure'";
        let listens = if pooler == "no" { "1" } else { "0" };
        let closed = || async { Ok((sql(&cluster, sessions)? == [listens]).then_some(())) };
        until(SOON, &format!("pooler={pooler}: the end of the connection"), closed).await?;
    }
    Ok(())
}

/// Two servers with tables, and the URL that names both.
async fn two_servers(options: &str) -> Result<(Cluster, Cluster, String)> {
    let (old, new) = (own_server()?, own_server()?);
    let password = password(&old)?;
    for cluster in [&old, &new] {
        drop(Postgres::open(&cluster.url()).await?);
        role(cluster, "app", "SUPERUSER", &password)?;
    }
    let (old_address, new_address) = (old.node().address(), new.node().address());
    let url = format!("postgres://app:{password}@{old_address},{new_address}/postgres?{options}");
    Ok((old, new, url))
}

/// The connection stays open, and every write on it fails.
async fn a_server_that_becomes_read_only_is_no_longer_used() -> Result<()> {
    let (old, new, url) = two_servers("pooler=yes").await?;
    let backend = Postgres::open(&url).await?;
    let held = claim("k")?;
    backend.try_acquire(&held).await?.granted()?;
    configure(&old, &[("default_transaction_read_only", "on")])?;
    let other = claim("other")?;
    until_response(|| backend.try_acquire(&other)).await?.granted()?;
    let there = sql(&new, "SELECT count(*) FROM tenure_lease")?;
    ensure!(there == ["1"], "the new server has {there:?}");
    Ok(())
}

/// The old primary comes back as a standby, under the same address.
async fn a_demoted_server_is_no_longer_used() -> Result<()> {
    for mode in ["lease", "session", "row"] {
        let (old, new, url) = two_servers(&format!("mode={mode}")).await?;
        let backend = Postgres::open(&url).await?;
        backend.try_acquire(&claim("k")?).await?.granted()?;
        old.node().stop()?;
        std::fs::write(old.node().dir().join("data/standby.signal"), "")?;
        old.node().restart()?;
        ensure!(sql(&old, "SELECT pg_is_in_recovery()")? == ["t"]);
        let other = claim("other")?;
        until_response(|| backend.try_acquire(&other)).await?.granted()?;
        let table = if mode == "lease" { "tenure_lease" } else { "tenure_board" };
        let there = sql(&new, &format!("SELECT count(*) FROM {table}"))?;
        ensure!(there == ["1"], "{mode}: the new server has {there:?}");
        let findings = soon("doctor", backend.doctor()).await??;
        ensure!(findings.iter().all(|one| one.severity != Severity::Fault), "{findings:?}");
    }
    Ok(())
}
