//! Foreign clients and administrators: other settings, foreign locks, missing rights, a pooler.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::backend::{Backend, Claim, Owner};
use tenure::backends::Postgres;
use tenure::{Attempt, ErrorKind, Severity};
use tenure_conformance::context::{soon, within};
use tenure_servers::wire::postgres::Postgres as Wire;

use crate::{
    LONGEST, cases, claim, connect, own_server, password, pooler, role, server, sql, unique,
    until_response,
};

cases! {
    other_isolation_levels_change_nothing,
    time_zones_do_not_matter,
    a_user_without_rights_is_told_what_to_do,
    a_foreign_advisory_lock_is_respected,
    a_hung_foreign_transaction_is_reported_as_unavailable,
    doctor_reports_what_is_wrong,
    a_transaction_pooler_is_detected,
}

async fn other_isolation_levels_change_nothing() -> Result<()> {
    let cluster = server()?;
    for (number, level) in ["repeatable read", "serializable"].into_iter().enumerate() {
        let name = format!("isolation{number}");
        role(cluster, &name, "SUPERUSER", &password(cluster)?)?;
        sql(cluster, &format!("ALTER ROLE {name} SET default_transaction_isolation = '{level}'"))?;
        let url = cluster.url().replace("//postgres:", &format!("//{name}:"));
        for mode in ["lease", "session", "row"] {
            race(&format!("{url}?mode={mode}")).await.context(format!("{level}, {mode}"))?;
        }
        // Behind a pooler every transaction sets its own.
        race(&format!("{url}?pooler=yes")).await.context(format!("{level}, pooled"))?;
    }
    Ok(())
}

/// Several clients increment a counter under one lock.
async fn race(url: &str) -> Result<()> {
    let key = unique("k");
    let counter = std::sync::Arc::new(std::sync::Mutex::new((0, 0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let client = connect(url).await?;
        let (key, counter) = (key.clone(), counter.clone());
        tasks.spawn(async move {
            for _ in 0..10 {
                let guard = client.lock(&key).ttl(Duration::from_secs(3)).acquire().await?;
                let (count, token) = *counter.lock().unwrap();
                ensure!(guard.token().get() > token, "{} after {token}", guard.token());
                tokio::task::yield_now().await;
                *counter.lock().unwrap() = (count + 1, guard.token().get());
                guard.release().await?;
            }
            Ok(())
        });
    }
    while let Some(done) = within(LONGEST, "the race", tasks.join_next()).await? {
        done??;
    }
    let (count, _) = *counter.lock().unwrap();
    ensure!(count == 40, "{count} instead of 40");
    Ok(())
}

async fn time_zones_do_not_matter() -> Result<()> {
    let cluster = server()?;
    let mut backends = Vec::new();
    for (user, zone, style) in [("tokyo", "Asia/Tokyo", "SQL"), ("lima", "America/Lima", "German")]
    {
        role(cluster, user, "SUPERUSER", &password(cluster)?)?;
        sql(cluster, &format!("ALTER ROLE {user} SET timezone = '{zone}'"))?;
        sql(cluster, &format!("ALTER ROLE {user} SET datestyle = '{style}'"))?;
        let url = cluster.url().replace("//postgres:", &format!("//{user}:"));
        backends.push(Postgres::open(&url).await?);
    }
    let (tokyo, lima) = (&backends[0], &backends[1]);
    let holder = claim(&unique("k"))?;
    let mut waiter = Claim::new(holder.key.clone(), Owner::random(), holder.ttl);
    waiter.waits = true;
    let first = tokyo.try_acquire(&holder).await?.granted()?;
    let Attempt::Busy(busy) = lima.try_acquire(&waiter).await? else {
        anyhow::bail!("two holders")
    };
    let left = busy.holder.and_then(|holder| holder.ttl_left).context("a lease")?;
    ensure!(left > Duration::from_secs(10) && left <= Duration::from_secs(20), "{left:?} left");
    let pushed = lima.until_free(&waiter);
    ensure!(tokyo.release(&holder).await?);
    let grant = soon("the pushed grant", pushed).await?.context("a grant")?;
    ensure!(grant.token > first.token);
    ensure!(lima.renew(std::slice::from_ref(&waiter)).await[0].is_ok());
    ensure!(lima.release(&waiter).await?);
    Ok(())
}

async fn a_user_without_rights_is_told_what_to_do() -> Result<()> {
    let cluster = own_server()?;
    let url = cluster.url();
    role(&cluster, "guest", "", &password(&cluster)?)?;
    sql(&cluster, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")?;
    let guest = url.replace("//postgres:", "//guest:");
    let error = soon("connect", Postgres::open(&guest)).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    ensure!(error.to_string().contains("tenure schema postgres"), "{error}");
    let other = url.replace("/postgres", "/none").replace("//none:", "//postgres:");
    let error = soon("connect", Postgres::open(&other)).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Invalid && error.to_string().contains("none"), "{error:?}");
    let unknown = url.replace("//postgres:", "//unknown:");
    let error = soon("connect", Postgres::open(&unknown)).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    Ok(())
}

async fn a_foreign_advisory_lock_is_respected() -> Result<()> {
    let cluster = server()?;
    let client = connect(&format!("{}?mode=session", cluster.url())).await?;
    let key = unique("k");
    let mut psql = Wire::connect(cluster.node().port())?;
    // The scheme of the page, in SQL.
    let number = format!(
        "(SELECT ('x' || string_agg(lpad(to_hex(get_byte(d, 7 - i)), 2, '0'), '' ORDER BY i))\
         ::bit(64)::bigint FROM (SELECT sha256(convert_to('{key}', 'UTF8')) AS d) x, \
         generate_series(0, 7) i)"
    );
    psql.query(&format!("SELECT pg_advisory_lock({number})"))?;
    ensure!(matches!(client.lock(&key).try_acquire().await?, Attempt::Busy(_)), "two holders");
    let waiter = tokio::spawn(client.lock(&key).acquire());
    psql.query(&format!("SELECT pg_advisory_unlock({number})"))?;
    let guard = soon("the lock", waiter).await???;
    let theirs = psql.query(&format!("SELECT pg_try_advisory_lock({number})"))?;
    ensure!(theirs == ["f"], "{theirs:?}");
    guard.release().await?;
    Ok(())
}

/// A foreign transaction has the row locked and hangs.
async fn a_hung_foreign_transaction_is_reported_as_unavailable() -> Result<()> {
    let cluster = server()?;
    let backend = Postgres::open(&cluster.url()).await?;
    let claim = claim(&unique("k"))?;
    backend.try_acquire(&claim).await?.granted()?;
    let mut other = Wire::connect(cluster.node().port())?;
    let key = claim.key.as_str();
    other.query(&format!(
        "BEGIN; SELECT 1 FROM tenure_lease WHERE key = convert_to('{key}', 'UTF8') FOR UPDATE"
    ))?;
    let response = soon("a response", backend.release(&claim)).await?;
    let kind = response.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Unavailable), "{kind:?}");
    other.query("ROLLBACK")?;
    ensure!(until_response(|| backend.release(&claim)).await?, "it was held until now");
    Ok(())
}

async fn doctor_reports_what_is_wrong() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&cluster.url()).await?;
    let severity = async |subject: &str| -> Result<Severity> {
        let findings = soon("doctor", backend.doctor()).await??;
        let finding = findings.iter().find(|finding| finding.subject == subject);
        Ok(finding.with_context(|| format!("{subject}: {findings:?}"))?.severity)
    };
    // The servers of tests run with fsync off.
    ensure!(severity("durability").await? == Severity::Warning);
    for subject in ["pooler", "rights", "index", "tokens"] {
        ensure!(severity(subject).await? == Severity::Good, "{subject}");
    }
    sql(&cluster, "ALTER SEQUENCE tenure_token CACHE 10")?;
    ensure!(severity("tokens").await? == Severity::Fault);
    sql(&cluster, "ALTER TABLE tenure_lease DROP CONSTRAINT tenure_lease_pkey")?;
    ensure!(severity("index").await? == Severity::Fault);
    Ok(())
}

async fn a_transaction_pooler_is_detected() -> Result<()> {
    let cluster = server()?;
    let pooler = pooler::start(cluster.node().port())?;
    let url = cluster.node().url_at(&format!("127.0.0.1:{pooler}"));
    for mode in ["session", "row"] {
        let refused = soon("connect", Postgres::open(&format!("{url}?mode={mode}"))).await?;
        let error = refused.unwrap_err();
        ensure!(error.kind() == ErrorKind::Unsupported, "{mode}: {error:?}");
        ensure!(error.to_string().contains("mode=lease"), "{error}");
    }
    // Leases work behind a pooler, without wake-ups, if the URL says that there is one.
    let error = soon("connect", Postgres::open(&url)).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unsupported, "{error:?}");
    ensure!(error.to_string().contains("pooler=yes"), "{error}");
    // The refused clients have set nothing on the server connections, which other clients get next.
    let mut next = Wire::with_password(pooler, &password(cluster)?)?;
    for _ in 0..8 {
        ensure!(next.query("SHOW lock_timeout")? == ["0"]);
    }
    race(&format!("{url}?pooler=yes")).await
}
