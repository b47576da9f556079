//! Foreign clients with the same locks, users without privileges, the number of connections, and
//! `doctor`.

use anyhow::{Result, ensure};
use tenure::{Attempt, ErrorKind, Severity};
use tenure_conformance::context::{soon, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use crate::{acquire, admin, client, is_busy};

server_cases! {
    acquire_waits_for_a_foreign_client_with_the_named_lock Mariadb;
    acquire_waits_for_a_foreign_client_with_the_row_lock Mariadb;
    a_user_who_may_not_create_tables_is_told_what_to_do Mariadb;
    connections_do_not_grow_with_locks_and_waiters Mariadb;
    doctor_names_what_is_wrong Mariadb;
    an_unreachable_server_is_named Mariadb;
}

async fn acquire_waits_for_a_foreign_client_with_the_named_lock(cluster: &Cluster) -> Result<()> {
    let locks = client(cluster, "mode=session").await?;
    let mut foreign = admin(cluster)?;
    let name = "CONCAT('tenure:',LEFT(SHA2(CONCAT(HEX('test'),'/',HEX('k')),256),40))";
    ensure!(foreign.query(&format!("SELECT GET_LOCK({name},0)"))? == ["1"]);
    ensure!(is_busy(&locks.lock("k")).await?, "two clients hold one named lock");
    ensure!(!is_busy(&locks.lock("K")).await?, "names differ by case");
    let waiting = tokio::spawn(locks.lock("k").acquire());
    foreign.query(&format!("SELECT RELEASE_LOCK({name})"))?;
    let guard = soon("the waiter's grant", waiting).await???;
    ensure!(foreign.query(&format!("SELECT GET_LOCK({name},0)"))? == ["0"]);
    guard.release().await?;
    ensure!(foreign.query(&format!("SELECT GET_LOCK({name},0)"))? == ["1"]);
    Ok(())
}

async fn acquire_waits_for_a_foreign_client_with_the_row_lock(cluster: &Cluster) -> Result<()> {
    let locks = client(cluster, "mode=row").await?;
    acquire(&locks.lock("k")).await?.release().await?;
    let mut foreign = admin(cluster)?;
    foreign.query("START TRANSACTION")?;
    foreign.query("SELECT k FROM tenure_row_lock WHERE k='k' FOR UPDATE")?;
    ensure!(is_busy(&locks.lock("k")).await?, "two clients hold one row lock");
    let waiting = tokio::spawn(locks.lock("k").acquire());
    foreign.query("COMMIT")?;
    let guard = soon("the waiter's grant", waiting).await???;
    let sql = "SELECT k FROM tenure_row_lock WHERE k='k' FOR UPDATE SKIP LOCKED";
    ensure!(foreign.query(sql)?.is_empty(), "the row is not locked");
    guard.release().await?;
    ensure!(foreign.query(sql)? == ["k"]);
    Ok(())
}

async fn a_user_who_may_not_create_tables_is_told_what_to_do(cluster: &Cluster) -> Result<()> {
    let mut admin = admin(cluster)?;
    for sql in [
        "CREATE USER 'app'@'127.0.0.1' IDENTIFIED BY 'p@ss/word'",
        "GRANT SELECT,INSERT,UPDATE,DELETE ON test.* TO 'app'@'127.0.0.1'",
        // MariaDB lets every user create tables in `test`.
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
        acquire(&locks.lock("k")).await?.release().await?;
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

async fn connections_do_not_grow_with_locks_and_waiters(cluster: &Cluster) -> Result<()> {
    for (mode, most) in [("mode=lease", 4), ("mode=session", 3), ("mode=row&connections=1", 4)] {
        let (holder, waiter) = (client(cluster, "").await?, client(cluster, mode).await?);
        let mut admin = admin(cluster)?;
        let sql = "SELECT COUNT(*) FROM information_schema.processlist";
        let before: u32 = admin.query(sql)?[0].parse()?;
        let holds = if mode.contains("row") { 1 } else { 30 };
        let mut guards = Vec::new();
        for number in 0..holds {
            guards.push(acquire(&waiter.lock(format!("held/{number}"))).await?);
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

async fn doctor_names_what_is_wrong(cluster: &Cluster) -> Result<()> {
    let locks = client(cluster, "").await?;
    let mut admin = admin(cluster)?;
    admin.query("SET GLOBAL innodb_flush_log_at_trx_commit=0")?;
    admin.query("ALTER TABLE tenure_waiter ENGINE=MyISAM")?;
    let findings = soon("doctor", locks.doctor()).await??;
    let with = |severity| findings.iter().filter(move |finding| finding.severity == severity);
    ensure!(with(Severity::Warning).any(|finding| finding.subject == "durability"), "{findings:?}");
    ensure!(with(Severity::Fault).any(|finding| finding.subject == "tenure_waiter"));
    ensure!(matches!(
        soon("try_acquire", locks.lock("k").try_acquire()).await??,
        Attempt::Granted(_)
    ));
    Ok(())
}

async fn an_unreachable_server_is_named(cluster: &Cluster) -> Result<()> {
    cluster.node().kill()?;
    let error = tenure::connect(&cluster.url()).await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    ensure!(error.to_string().contains(&cluster.node().address()), "{error}");
    Ok(())
}
