//! The rows: a million old ones, sweeping, and tokens that are never granted twice.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenure_conformance::context::{SOON, until};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;
use tokio::time::Instant;

use crate::{acquire, admin, client};

server_cases! {
    a_million_old_rows_do_not_slow_an_acquire Mariadb;
    tokens_grow_after_their_rows_were_swept Mariadb;
    a_row_that_a_foreign_client_locks_does_not_stop_the_sweep Mariadb;
}

async fn a_million_old_rows_do_not_slow_an_acquire(cluster: &Cluster) -> Result<()> {
    let locks = client(cluster, "sweep=0s").await?;
    let mut admin = admin(cluster)?;
    // MariaDB has tables of sequences, MySQL does not.
    admin.query("CREATE TABLE ten_thousand (seq INT PRIMARY KEY)")?;
    for part in 0..10 {
        let numbers: Vec<_> = (1..=1000).map(|n| format!("({})", part * 1000 + n)).collect();
        admin.query(&format!("INSERT INTO ten_thousand VALUES {}", numbers.join(",")))?;
    }
    for part in 0..100 {
        admin.query(&format!(
            "INSERT INTO tenure_lease (k,owner,token,until,since,note,home,bell) SELECT \
             CONCAT('old/',seq+{0}),'gone',seq+{0},'2001-01-01','2001-01-01','','','' \
             FROM ten_thousand",
            part * 10_000
        ))?;
    }
    let mut took = Vec::new();
    for number in 0..50 {
        let start = Instant::now();
        let guard = acquire(&locks.lock(format!("old/{}", number * 19_937 + 1))).await?;
        guard.release().await?;
        acquire(&locks.lock(format!("new/{number}"))).await?.release().await?;
        took.push(start.elapsed());
    }
    // A scan of the table takes a second on a quiet machine, each time; a stall of the machine
    // slows a few of them down.
    took.sort();
    ensure!(took[40] < Duration::from_millis(900), "they took {took:?}");
    Ok(())
}

async fn tokens_grow_after_their_rows_were_swept(cluster: &Cluster) -> Result<()> {
    for (mode, table) in [
        ("mode=lease", "tenure_lease"),
        ("mode=session", "tenure_session"),
        ("mode=row", "tenure_row"),
    ] {
        let locks = client(cluster, &format!("{mode}&sweep=20ms")).await?;
        let mut admin = admin(cluster)?;
        let mut last = None;
        for number in 0..5 {
            // Every key has its own counter; the floor is above those of all swept keys.
            for _ in 0..3 {
                acquire(&locks.lock(format!("other/{number}"))).await?.release().await?;
            }
            let guard = acquire(&locks.lock("k")).await?;
            ensure!(Some(guard.token()) > last, "{mode}: {:?} after {last:?}", guard.token());
            last = Some(guard.token());
            guard.release().await?;
            admin.query(&format!("UPDATE {table} SET until=until-INTERVAL 2 MINUTE"))?;
            let rows = format!("SELECT k FROM {table}");
            let empty = || {
                let rows = admin.query(&rows);
                async { Ok(rows?.is_empty().then_some(())) }
            };
            until(SOON, "the sweep", empty).await?;
        }
    }
    Ok(())
}

/// Its record is swept and its row stays; the rows of the other keys are removed.
async fn a_row_that_a_foreign_client_locks_does_not_stop_the_sweep(
    cluster: &Cluster,
) -> Result<()> {
    let locks = client(cluster, "mode=row&sweep=20ms").await?;
    for key in ["a", "b", "c"] {
        acquire(&locks.lock(key)).await?.release().await?;
    }
    let (mut foreign, mut admin) = (admin(cluster)?, admin(cluster)?);
    foreign.query("START TRANSACTION")?;
    foreign.query("SELECT k FROM tenure_row_lock WHERE k='a' FOR UPDATE")?;
    admin.query("UPDATE tenure_row SET until=until-INTERVAL 2 MINUTE")?;
    let swept = || {
        let rows = admin.query("SELECT k FROM tenure_row_lock");
        async { Ok((rows? == ["a"]).then_some(())) }
    };
    until(SOON, "the sweep of the others", swept).await?;
    Ok(())
}
