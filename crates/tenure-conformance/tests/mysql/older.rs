//! Installations and clients from before there were shared locks: their tables, their rights, and
//! the statements that they sent, here as text.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::backend::{Backend, Claim, Mode, Owner};
use tenure::backends::Mysql;
use tenure::{Attempt, ErrorKind, Key, Severity};
use tenure_conformance::context::{SOON, soon, until, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;
use tenure_servers::wire::mysql::Mysql as Admin;

use crate::{acquire, admin, client, is_busy};

server_cases! {
    an_older_installation_gets_the_table_of_holders Mariadb;
    a_user_who_may_not_create_it_has_exclusive_locks_only Mariadb;
    an_older_client_finds_a_key_with_readers_held Mariadb;
    an_older_client_hands_off_to_a_reader_that_others_join Mariadb;
    an_eviction_by_an_older_client_ends_every_reader Mariadb;
}

const NOW: &str = "UTC_TIMESTAMP(6)";
const IS_FREE: &str = "(owner='' OR until<=UTC_TIMESTAMP(6))";

/// The columns that an older client sets when it acquires.
fn grant(ttl: u32) -> String {
    format!(
        "owner='old:1',token=token+1,until={NOW}+INTERVAL {ttl} SECOND,since={NOW},note='',\
         home='x',bell=''"
    )
}

/// The first waiter becomes the owner of the free key `k`, whatever it waits for.
fn older_handoff(admin: &mut Admin) -> Result<()> {
    for sql in [
        "UPDATE tenure_lease l JOIN tenure_waiter w ON w.k=l.k SET l.owner=w.owner,\
         l.token=l.token+1,l.since=UTC_TIMESTAMP(6),l.note=w.note,l.bell=w.bell,l.until=w.until,\
         l.home=w.home WHERE l.k='k' AND (l.owner='' OR l.until<=UTC_TIMESTAMP(6)) AND \
         w.seat=(SELECT s FROM (SELECT MIN(seat) s FROM tenure_waiter WHERE k='k') m)",
        "DELETE w FROM tenure_waiter w JOIN tenure_lease l ON l.k=w.k AND l.owner=w.owner \
         WHERE w.k='k'",
        "UPDATE tenure_lease SET queued=(SELECT COUNT(*) FROM tenure_waiter w WHERE w.k='k') \
         WHERE k='k'",
    ] {
        admin.query(sql)?;
    }
    Ok(())
}

fn owner(admin: &mut Admin) -> Result<String> {
    admin.query("SELECT owner FROM tenure_lease WHERE k='k'")?.pop().context("the key has a row")
}

fn shared(ttl: Duration) -> Result<Claim> {
    let mut claim = Claim::new(Key::new("k")?, Owner::random(), ttl);
    claim.mode = Mode::Shared;
    Ok(claim)
}

async fn an_older_installation_gets_the_table_of_holders(cluster: &Cluster) -> Result<()> {
    let older = client(cluster, "").await?;
    let guard = acquire(&older.lock("held")).await?;
    admin(cluster)?.query("DROP TABLE tenure_holder")?;
    let locks = client(cluster, "").await?;
    ensure!(locks.info().modes.shared && locks.info().modes.permits);
    acquire(&locks.lock("k").shared()).await?.release().await?;
    ensure!(is_busy(&locks.lock("held")).await?, "the holders of before were forgotten");
    guard.release().await?;
    Ok(())
}

async fn a_user_who_may_not_create_it_has_exclusive_locks_only(cluster: &Cluster) -> Result<()> {
    client(cluster, "").await?;
    let mut admin = admin(cluster)?;
    for sql in [
        "CREATE USER 'app'@'127.0.0.1' IDENTIFIED BY 'secret'",
        "GRANT SELECT,INSERT,UPDATE,DELETE ON test.* TO 'app'@'127.0.0.1'",
        // MariaDB lets every user create tables in `test`.
        "DELETE FROM mysql.db WHERE User=''",
        "FLUSH PRIVILEGES",
        "DROP TABLE tenure_holder",
    ] {
        admin.query(sql)?;
    }
    let url = format!("mysql://app:secret@{}/test", cluster.node().address());
    let locks = tenure::connect(&url).await?;
    let refused = soon("refusal", locks.lock("k").shared().acquire()).await?.map(drop);
    let refused = refused.err().context("granted without the table")?;
    ensure!(refused.kind() == ErrorKind::Unsupported, "{refused}");
    let guard = acquire(&locks.lock("k")).await?;
    ensure!(locks.lock("k").status().await?.is_some());
    ensure!(soon("evict", locks.lock("k").evict(guard.token())).await??);
    drop(guard);
    let findings = locks.doctor().await?;
    let found = findings.iter().find(|finding| finding.subject == "tenure_holder");
    ensure!(found.is_some_and(|found| found.severity == Severity::Notice), "{findings:?}");

    let schema = tenure::backends::mysql::SCHEMA.lines().filter(|line| !line.starts_with("--"));
    let schema = schema.collect::<Vec<_>>().join("\n");
    for sql in schema.split(';').filter(|sql| !sql.trim().is_empty()) {
        admin.query(sql)?;
    }
    let later = tenure::connect(&url).await?;
    acquire(&later.lock("k").shared()).await?.release().await?;
    Ok(())
}

async fn an_older_client_finds_a_key_with_readers_held(cluster: &Cluster) -> Result<()> {
    let (one, two) = (client(cluster, "").await?, client(cluster, "").await?);
    let readers =
        [acquire(&one.lock("k").shared()).await?, acquire(&two.lock("k").shared()).await?];
    let mut admin = admin(cluster)?;
    let before = owner(&mut admin)?;
    admin.query(&format!("UPDATE tenure_lease SET {} WHERE k='k' AND {IS_FREE}", grant(60)))?;
    older_handoff(&mut admin)?;
    ensure!(owner(&mut admin)? == before, "it was granted beside readers");

    // It waits, and is handed the key when the last reader has left.
    admin.query(&format!(
        "INSERT INTO tenure_waiter (k,owner,until,since,note,home,bell) \
         VALUES ('k','old:2',{NOW}+INTERVAL 60 SECOND,{NOW},'','x','')"
    ))?;
    admin.query("UPDATE tenure_lease SET queued=queued+1 WHERE k='k'")?;
    ensure!(is_busy(&one.lock("k").shared()).await?, "a reader passed a waiting writer");
    let highest = readers.iter().map(|reader| reader.token().get()).max().unwrap_or(0);
    for reader in readers {
        reader.release().await?;
    }
    ensure!(owner(&mut admin)? == "old:2");
    let token = admin.query("SELECT token FROM tenure_lease WHERE k='k'")?.pop();
    ensure!(token.context("the key has a row")?.parse::<u64>()? > highest);
    ensure!(is_busy(&one.lock("k").shared()).await?, "a reader beside an older writer");
    Ok(())
}

/// The older client takes the reader for a writer, which is safe; then the other readers join.
async fn an_older_client_hands_off_to_a_reader_that_others_join(cluster: &Cluster) -> Result<()> {
    let ttl = Duration::from_secs(2);
    let watcher = client(cluster, "").await?.lock("k").ttl(ttl);
    acquire(&watcher).await?.release().await?;
    let mut admin = admin(cluster)?;
    admin.query(&format!("UPDATE tenure_lease SET {} WHERE k='k' AND {IS_FREE}", grant(60)))?;
    let mut waiting = Vec::new();
    for count in 1..=2 {
        let lock = client(cluster, "").await?.lock("k").ttl(ttl).shared();
        waiting.push(tokio::spawn(async move { lock.acquire().await }));
        until_waiters(&watcher, count).await?;
    }
    admin.query(&format!("UPDATE tenure_lease SET owner='',until={NOW} WHERE k='k'"))?;
    older_handoff(&mut admin)?;
    let mut readers = Vec::new();
    for waiter in waiting {
        readers.push(soon("a reader's grant", waiter).await???);
    }
    ensure!(readers[0].token() != readers[1].token());
    let holding = watcher.status().await?.context("it is held")?;
    ensure!(holding.holders.len() == 2, "{holding:?}");
    ensure!(holding.holders.iter().all(|holder| holder.mode == Mode::Shared), "{holding:?}");
    // Both are renewed where they stand now.
    let lost = tokio::time::timeout(ttl * 2, readers[0].lost()).await;
    ensure!(lost.is_err(), "{lost:?}");
    for reader in readers {
        reader.check()?;
        reader.release().await?;
    }
    acquire(&watcher).await?.release().await?;
    Ok(())
}

async fn an_eviction_by_an_older_client_ends_every_reader(cluster: &Cluster) -> Result<()> {
    let backend = Mysql::open(&cluster.url()).await?;
    let mut readers = [shared(Duration::from_secs(60))?, shared(Duration::from_secs(60))?];
    for reader in &mut readers {
        let grant = backend.try_acquire(reader).await?.granted().ok().context("it fits")?;
        reader.token = Some(grant.token);
    }
    let mut admin = admin(cluster)?;
    // What it was shown is the highest token.
    admin.query(&format!(
        "UPDATE tenure_lease SET owner='',until={NOW} WHERE k='k' AND token={} AND NOT {IS_FREE}",
        readers[1].token.context("granted")?
    ))?;
    admin.query(&format!("UPDATE tenure_lease SET {} WHERE k='k' AND {IS_FREE}", grant(60)))?;
    ensure!(owner(&mut admin)? == "old:1");
    for renewed in backend.renew(&readers).await {
        let error = renewed.err().context("a reader was renewed beside an older writer")?;
        ensure!(error.kind() == ErrorKind::Lost, "{error}");
    }
    // They do not come back with the next reader.
    admin.query(&format!("UPDATE tenure_lease SET owner='',until={NOW} WHERE k='k'"))?;
    let next = shared(Duration::from_secs(60))?;
    let attempt = backend.try_acquire(&next).await?;
    ensure!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}");
    for reader in &readers {
        ensure!(!backend.release(reader).await?, "an evicted reader held again");
    }
    let locks = client(cluster, "").await?;
    let one_holder = || async {
        let holding = locks.lock("k").status().await?;
        Ok(holding.filter(|holding| holding.holders.len() == 1).map(drop))
    };
    until(SOON, "one holder", one_holder).await?;
    ensure!(backend.release(&next).await?);
    acquire(&locks.lock("k")).await?.release().await?;
    Ok(())
}
