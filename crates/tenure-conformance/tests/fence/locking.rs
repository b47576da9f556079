//! The row of a fence stays locked until the transaction ends, so that nothing comes between the
//! admission and the write.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, TxOpts};
use tenure::fence;

use crate::registers::{connect_postgres, open};
use crate::{cases, token, unique};

cases! {
    another_token_waits_until_the_transaction_ends_in_postgres on &["postgres"];
    another_token_waits_until_the_transaction_ends_in_mysql on &["mysql"];
}

async fn another_token_waits_until_the_transaction_ends_in_postgres(url: String) -> Result<()> {
    let (name, mut db) = (unique("locked"), connect_postgres(&url).await?);
    for commits in [false, true] {
        let tx = db.transaction().await?;
        fence::tokio_postgres::admit(&tx, &name, token(8)).await?;
        let mut register = open(&url, &name).await?;
        let stale = tokio::spawn(async move { register.write(1, Some(token(7))).await });
        let watcher = connect_postgres(&url).await?;
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                       AND query LIKE '%tenure_fence%' AND pid <> pg_backend_pid()";
        while watcher.query_one(waiting, &[]).await?.get::<_, i64>(0) == 0 {
            ensure!(!stale.is_finished(), "a lower token did not wait");
            tokio::task::yield_now().await;
        }
        match commits {
            true => tx.commit().await?,
            false => tx.rollback().await?,
        }
        // What is rolled back was never seen.
        ensure!(stale.await??.is_err() == commits);
    }
    Ok(())
}

async fn another_token_waits_until_the_transaction_ends_in_mysql(url: String) -> Result<()> {
    let (name, mut db) = (unique("locked"), Conn::new(Opts::from_url(&url)?).await?);
    // The row is there: two first ones at once could be a deadlock, which is another matter.
    open(&url, &name).await?.write(0, Some(token(1))).await??;
    for commits in [false, true] {
        let mut tx = db.start_transaction(TxOpts::default()).await?;
        fence::mysql_async::admit(&mut tx, &name, token(8)).await?;
        let mut register = open(&url, &name).await?;
        let stale = tokio::spawn(async move { register.write(1, Some(token(7))).await });
        let mut watcher = Conn::new(Opts::from_url(&url)?).await?;
        let waiting = "SELECT count(*) FROM information_schema.innodb_trx \
                       WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%tenure_fence%'";
        while watcher.query_first::<u64, _>(waiting).await?.context("a count")? == 0 {
            ensure!(!stale.is_finished(), "a lower token did not wait");
            // InnoDB shows old news until nobody has looked for 100 ms.
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        match commits {
            true => tx.commit().await?,
            false => tx.rollback().await?,
        }
        ensure!(stale.await??.is_err() == commits);
    }
    Ok(())
}
