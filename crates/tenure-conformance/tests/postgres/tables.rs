//! The tables: what grows in them, what is swept, and what one handoff writes.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tenure::backend::{Backend, Scope};
use tenure::backends::Postgres;
use tenure::{Attempt, ErrorKind, Severity};
use tenure_conformance::context::{SOON, acquire_free, soon, until, until_waiters};
use tenure_servers::Cluster;
use tenure_servers::wire::postgres::Postgres as Wire;

use crate::{LONGEST, cases, claim, connect, own_server, password, role, server, sql, unique};

cases! {
    a_million_expired_rows_do_not_slow_an_acquire_down,
    a_sweep_removes_what_expired_and_keeps_what_is_held,
    keys_that_differ_in_a_byte_are_different_locks,
    a_handoff_is_one_statement,
    roles_with_other_search_paths_share_locks,
    a_schema_can_be_chosen,
    tables_of_earlier_versions_in_another_schema_are_not_ignored,
    connections_do_not_grow_with_locks_and_waiters,
}

async fn a_million_expired_rows_do_not_slow_an_acquire_down() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&cluster.url()).await?;
    let fill = "INSERT INTO tenure_lease (key, owner, token, until) \
                SELECT convert_to('expired/' || n, 'UTF8'), 'x', nextval('tenure_token'), \
                now() - interval '1 hour' FROM generate_series(1, 1000000) n";
    let mut wire = Wire::connect(cluster.node().port())?;
    // The test's connection times out after five seconds without a response; the server continues.
    drop(wire.query(&format!("SET synchronous_commit = off; {fill}")));
    until_rows(&cluster, "1000000", Duration::from_secs(90)).await?;
    let mut times = Vec::new();
    for number in 1..200 {
        let claim = claim(&format!("expired/{}", number * 5000))?;
        let start = Instant::now();
        backend.try_acquire(&claim).await?.granted()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    println!("takeover among a million expired rows: {:?} in the middle", times[100]);
    // A scan of the table takes some hundred milliseconds.
    ensure!(times[100] < Duration::from_millis(50), "{:?}", times[100]);
    Ok(())
}

async fn a_sweep_removes_what_expired_and_keeps_what_is_held() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&format!("{}?sweep=50ms", cluster.url())).await?;
    let (held, mut waiter) = (claim("held")?, claim("waited for")?);
    let token = backend.try_acquire(&held).await?.granted()?.token;
    let expired = claim("waited for")?;
    backend.try_acquire(&expired).await?.granted()?;
    waiter.waits = true;
    ensure!(matches!(backend.try_acquire(&waiter).await?, Attempt::Busy(_)));
    sql(
        &cluster,
        "UPDATE tenure_lease SET until = now() - interval '2 minutes' \
                   WHERE key = 'waited for'",
    )?;
    sql(
        &cluster,
        "INSERT INTO tenure_lease (key, owner, token, until) \
                   SELECT convert_to('expired/' || n, 'UTF8'), 'x', nextval('tenure_token'), \
                   now() - interval '2 minutes' FROM generate_series(1, 5000) n",
    )?;
    until_rows(&cluster, "2", SOON).await?;
    ensure!(backend.try_acquire(&held).await?.granted()?.token == token, "a held row was swept");
    // The waiter is still the first in the queue of the expired holder.
    let newcomer = claim("waited for")?;
    ensure!(matches!(backend.try_acquire(&newcomer).await?, Attempt::Busy(_)));
    let grant = backend.try_acquire(&waiter).await?.granted()?;
    ensure!(grant.token > token);
    Ok(())
}

async fn keys_that_differ_in_a_byte_are_different_locks() -> Result<()> {
    let prefix = unique("");
    let keys =
        ["a", "A", "a a", "a  a", "a%", "a_", "a'", "a\"", "a\\", "ä", "a\u{308}", "🦀", "🦞"];
    for mode in ["lease", "session", "row"] {
        let client = connect(&format!("{}?mode={mode}", server()?.url())).await?;
        let mut guards = Vec::new();
        for key in keys {
            guards.push(acquire_free(&client.lock(format!("{prefix}{key}"))).await?);
        }
        ensure!(client.list(&prefix).await?.len() == keys.len());
        for guard in guards {
            guard.release().await?;
        }
        ensure!(client.list(&prefix).await?.is_empty());
    }
    Ok(())
}

/// A role that has a schema of its own name would find other tables first by its `search_path`.
async fn roles_with_other_search_paths_share_locks() -> Result<()> {
    let cluster = own_server()?;
    role(&cluster, "web", "SUPERUSER", &password(&cluster)?)?;
    sql(&cluster, "CREATE SCHEMA web AUTHORIZATION web")?;
    for mode in ["lease&pooler=yes", "lease", "session", "row"] {
        let url = format!("{}?mode={mode}", cluster.url());
        // In either order: the first client creates the tables.
        let web = Postgres::open(&url.replace("//postgres:", "//web:")).await?;
        let other = Postgres::open(&url).await?;
        let key = unique("k");
        web.try_acquire(&claim(&key)?).await?.granted()?;
        let attempt = other.try_acquire(&claim(&key)?).await?;
        ensure!(matches!(attempt, Attempt::Busy(_)), "{mode}: two holders");
    }
    let tables = "SELECT relnamespace::regnamespace FROM pg_class WHERE relname = 'tenure_lease'";
    ensure!(sql(&cluster, tables)? == ["public"]);
    Ok(())
}

/// Tables of another schema are other locks; doctor reports that there are several.
async fn a_schema_can_be_chosen() -> Result<()> {
    let cluster = own_server()?;
    let severity = async |backend: &Postgres| -> Result<Option<Severity>> {
        let findings = soon("doctor", backend.doctor()).await??;
        Ok(findings.iter().find(|one| one.subject == "schema").map(|one| one.severity))
    };
    let public = Postgres::open(&cluster.url()).await?;
    ensure!(severity(&public).await? == Some(Severity::Good));
    for mode in ["lease&pooler=yes", "lease", "session", "row"] {
        let url = format!("{}?mode={mode}&schema=my-Locks", cluster.url());
        let (one, two) = (Postgres::open(&url).await?, Postgres::open(&url).await?);
        let (held, mut waiter) = (claim(mode)?, claim(mode)?);
        waiter.waits = true;
        one.try_acquire(&held).await?.granted()?;
        ensure!(matches!(two.try_acquire(&waiter).await?, Attempt::Busy(_)), "{mode}");
        one.renew(std::slice::from_ref(&held)).await.remove(0)?;
        ensure!(one.release(&held).await?, "{mode}");
        let grant = until(SOON, "the turn", || async {
            Ok(two.try_acquire(&waiter).await?.granted().ok())
        });
        let grant = grant.await?;
        ensure!(one.evict(&waiter.key, grant.token).await?, "{mode}");
        ensure!(severity(&one).await? == Some(Severity::Warning), "{mode}");
    }
    ensure!(public.list(Scope::Prefix("")).await?.is_empty());
    ensure!(sql(&cluster, "SELECT count(*) FROM public.tenure_board")? == ["0"]);
    ensure!(severity(&public).await? == Some(Severity::Fault));
    Ok(())
}

async fn tables_of_earlier_versions_in_another_schema_are_not_ignored() -> Result<()> {
    let cluster = own_server()?;
    role(&cluster, "web", "SUPERUSER", &password(&cluster)?)?;
    sql(&cluster, "CREATE SCHEMA web AUTHORIZATION web")?;
    let tables = tenure::backends::postgres::SCHEMA.replace("public.", "web.");
    sql(&cluster, &tables)?;
    let url = cluster.url().replace("//postgres:", "//web:");
    let error = soon("connect", Postgres::open(&url)).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Invalid, "{error:?}");
    ensure!(error.to_string().contains("schema=web"), "{error}");
    Postgres::open(&format!("{url}?schema=web")).await?;
    Postgres::open(&format!("{url}?schema=public")).await?;
    Ok(())
}

/// Writes of the table, as the server counts them: one per handoff, however many waiters there are.
async fn a_handoff_is_one_statement() -> Result<()> {
    let cluster = own_server()?;
    let client = connect(&cluster.url()).await?;
    let mut writes = 0;
    for waiting in [1_u64, 10, 100] {
        // So long that no waiter repeats its request before the server updates its statistics.
        let lock = client.lock(format!("handoff/{waiting}")).ttl(Duration::from_secs(3600));
        let guard = acquire_free(&lock).await?;
        let waiters: Vec<_> = (0..waiting)
            .map(|_| {
                let lock = lock.clone();
                tokio::spawn(async move { lock.acquire().await?.release().await })
            })
            .collect();
        until_waiters(&lock, usize::try_from(waiting)?).await?;
        // The acquire and the queue entries.
        let before = until_written(&cluster, writes + 1 + waiting).await?;
        guard.release().await?;
        for waiter in waiters {
            soon("a waiter's turn", waiter).await???;
        }
        writes = until_written(&cluster, before + waiting + 1).await?;
        let done = writes - before;
        println!("{waiting} waiters: {done} writes for {} releases", waiting + 1);
        ensure!(done <= waiting + 1 + waiting / 10 + 1, "{done} writes for {waiting} waiters");
    }
    Ok(())
}

/// Waits until so many writes have been counted: an idle server process reports its statistics ten
/// seconds late.
async fn until_written(cluster: &Cluster, count: u64) -> Result<u64> {
    let text = "SELECT n_tup_upd + n_tup_ins FROM pg_stat_user_tables \
                WHERE relname = 'tenure_lease'";
    until(LONGEST / 3, &format!("{count} writes"), || async {
        let written = sql(cluster, text).ok().and_then(|rows| rows.first()?.parse().ok());
        Ok(written.filter(|written: &u64| *written >= count))
    })
    .await
}

async fn until_rows(cluster: &Cluster, count: &str, limit: Duration) -> Result<()> {
    until(limit, &format!("{count} rows"), || async {
        let rows = sql(cluster, "SELECT count(*) FROM tenure_lease")?;
        Ok((rows == [count]).then_some(()))
    })
    .await
}

async fn connections_do_not_grow_with_locks_and_waiters() -> Result<()> {
    let cluster = own_server()?;
    let count = || -> Result<usize> {
        let text = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'tenure%'";
        Ok(sql(&cluster, text)?[0].parse()?)
    };
    for (mode, most) in [("lease", 3), ("session", 4)] {
        let client = connect(&format!("{}?mode={mode}", cluster.url())).await?;
        let mut guards = Vec::new();
        for number in 0..50 {
            guards.push(acquire_free(&client.lock(format!("{mode}/{number}"))).await?);
        }
        let lock = client.lock(format!("{mode}/0"));
        let waiters: Vec<_> = (0..50).map(|_| tokio::spawn(lock.acquire())).collect();
        until_waiters(&lock, 50).await?;
        let used = count()?;
        println!("mode={mode}: {used} connections for 50 locks and 50 waiters");
        ensure!(used <= most, "mode={mode}: {used} connections");
        waiters.iter().for_each(tokio::task::JoinHandle::abort);
        drop(guards);
        soon("shutdown", client.shutdown(Duration::ZERO)).await??;
        drop((lock, client));
        let none = || async { Ok((count()? == 0).then_some(())) };
        until(SOON, "the end of the connections", none).await?;
    }
    Ok(())
}
