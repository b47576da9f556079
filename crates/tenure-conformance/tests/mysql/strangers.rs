//! Others on the same server: who takes our names by hand, who may not create tables, and how many
//! connections we use.

use anyhow::{Result, ensure};
use tenure::{Attempt, ErrorKind, Grade};
use tenure_conformance::bench::{soon, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use crate::{admin, client, is_busy, take};

server_cases! {
    a_stranger_with_our_name_is_waited_for Mariadb;
    a_stranger_with_our_row_is_waited_for Mariadb;
    who_may_not_create_tables_is_told_what_to_do Mariadb;
    the_number_of_connections_does_not_grow_with_locks_and_waiters Mariadb;
    an_examination_names_what_is_wrong Mariadb;
    a_server_that_is_not_there_is_named Mariadb;
}

async fn a_stranger_with_our_name_is_waited_for(cluster: &Cluster) -> Result<()> {
    let locks = client(cluster, "mode=session").await?;
    let mut stranger = admin(cluster)?;
    let name = "CONCAT('tenure:',LEFT(SHA2(CONCAT(HEX('test'),'/',HEX('k')),256),40))";
    ensure!(stranger.query(&format!("SELECT GET_LOCK({name},0)"))? == ["1"]);
    ensure!(is_busy(&locks.lock("k")).await?, "two hold one name");
    ensure!(!is_busy(&locks.lock("K")).await?, "names differ by case");
    let waiting = tokio::spawn(locks.lock("k").acquire());
    stranger.query(&format!("SELECT RELEASE_LOCK({name})"))?;
    let guard = soon("the waiter's grant", waiting).await???;
    ensure!(stranger.query(&format!("SELECT GET_LOCK({name},0)"))? == ["0"]);
    guard.release().await?;
    ensure!(stranger.query(&format!("SELECT GET_LOCK({name},0)"))? == ["1"]);
    Ok(())
}

async fn a_stranger_with_our_row_is_waited_for(cluster: &Cluster) -> Result<()> {
    let locks = client(cluster, "mode=row").await?;
    take(&locks.lock("k")).await?.release().await?;
    let mut stranger = admin(cluster)?;
    stranger.query("START TRANSACTION")?;
    stranger.query("SELECT k FROM tenure_row_lock WHERE k='k' FOR UPDATE")?;
    ensure!(is_busy(&locks.lock("k")).await?, "two hold one row");
    let waiting = tokio::spawn(locks.lock("k").acquire());
    stranger.query("COMMIT")?;
    let guard = soon("the waiter's grant", waiting).await???;
    let sql = "SELECT k FROM tenure_row_lock WHERE k='k' FOR UPDATE SKIP LOCKED";
    ensure!(stranger.query(sql)?.is_empty(), "the row is not locked");
    guard.release().await?;
    ensure!(stranger.query(sql)? == ["k"]);
    Ok(())
}

async fn who_may_not_create_tables_is_told_what_to_do(cluster: &Cluster) -> Result<()> {
    let mut admin = admin(cluster)?;
    for sql in [
        "CREATE USER 'app'@'127.0.0.1' IDENTIFIED BY 'p@ss/word'",
        "GRANT SELECT,INSERT,UPDATE,DELETE ON test.* TO 'app'@'127.0.0.1'",
        // MariaDB lets everybody make tables in `test`.
        "DELETE FROM mysql.db WHERE User=''",
        "FLUSH PRIVILEGES",
    ] {
        admin.query(sql)?;
    }
    let address = cluster.node().address();
    let url = format!("mysql://app:p%40ss%2Fword@{address}/test");
    let error = soon("connect", tenure::connect(&url)).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    ensure!(error.to_string().contains("tenure schema mysql"), "{error}");
    let text = tenure::backends::mysql::SCHEMA.lines().filter(|line| !line.starts_with("--"));
    for sql in text.collect::<Vec<_>>().join("\n").split(';').filter(|sql| !sql.trim().is_empty()) {
        admin.query(sql)?;
    }
    for mode in ["lease", "session", "row"] {
        let locks = soon("connect", tenure::connect(&format!("{url}?mode={mode}"))).await??;
        take(&locks.lock("k")).await?.release().await?;
    }
    let error =
        soon("connect", tenure::connect(&format!("mysql://app:wrong@{address}/test"))).await?;
    let error = error.unwrap_err();
    ensure!(error.kind() == ErrorKind::Denied && !error.to_string().contains("wrong"), "{error:?}");
    let error =
        soon("connect", tenure::connect(&cluster.url().replace("/test", "/nowhere"))).await?;
    ensure!(error.unwrap_err().kind() == ErrorKind::Invalid);
    Ok(())
}

async fn the_number_of_connections_does_not_grow_with_locks_and_waiters(
    cluster: &Cluster,
) -> Result<()> {
    for (mode, most) in [("mode=lease", 4), ("mode=session", 3), ("mode=row&connections=1", 4)] {
        let (holder, waiter) = (client(cluster, "").await?, client(cluster, mode).await?);
        let mut admin = admin(cluster)?;
        let sql = "SELECT COUNT(*) FROM information_schema.processlist";
        let before: u32 = admin.query(sql)?[0].parse()?;
        let holds = if mode.contains("row") { 1 } else { 30 };
        let mut guards = Vec::new();
        for number in 0..holds {
            guards.push(take(&waiter.lock(format!("held/{number}"))).await?);
        }
        let mut waiting = tokio::task::JoinSet::new();
        for number in 0..holds {
            for _ in 0..5 {
                waiting.spawn(waiter.lock(format!("held/{number}")).acquire());
            }
        }
        until_waiters(&waiter.lock("held/0"), 5).await?;
        let after: u32 = admin.query(sql)?[0].parse()?;
        // One of them was there before.
        ensure!(after < before + most, "{mode}: {before} became {after}");
        drop((guards, holder));
    }
    Ok(())
}

async fn an_examination_names_what_is_wrong(cluster: &Cluster) -> Result<()> {
    let locks = client(cluster, "").await?;
    let mut admin = admin(cluster)?;
    admin.query("SET GLOBAL innodb_flush_log_at_trx_commit=0")?;
    admin.query("ALTER TABLE tenure_waiter ENGINE=MyISAM")?;
    let findings = soon("examine", locks.examine()).await??;
    let graded = |grade| findings.iter().filter(move |finding| finding.grade == grade);
    ensure!(graded(Grade::Warning).any(|finding| finding.subject == "durability"), "{findings:?}");
    ensure!(graded(Grade::Fault).any(|finding| finding.subject == "tenure_waiter"));
    ensure!(matches!(
        soon("try_acquire", locks.lock("k").try_acquire()).await??,
        Attempt::Granted(_)
    ));
    Ok(())
}

async fn a_server_that_is_not_there_is_named(cluster: &Cluster) -> Result<()> {
    cluster.node().kill()?;
    let error = tenure::connect(&cluster.url()).await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    ensure!(error.to_string().contains(&cluster.node().address()), "{error}");
    Ok(())
}
