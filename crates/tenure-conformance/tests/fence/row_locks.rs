//! The row of a fence stays locked until the transaction ends, so that nothing comes between the
//! admission and the write.

use anyhow::{Result, ensure};
use mysql_async::{Conn, Opts, TxOpts};
use tenure::fence;

use crate::registers::{connect_postgres, open};
use crate::{cases, lock_waits, token, unique};

cases! {
    another_token_waits_until_the_transaction_ends_in_postgres on &["postgres"];
    another_token_waits_until_the_transaction_ends_in_mysql on &["mysql"];
}

async fn another_token_waits_until_the_transaction_ends_in_postgres(url: String) -> Result<()> {
    let name = unique("locked");
    let mut db = connect_postgres(&url).await?;
    for commits in [false, true] {
        let tx = db.transaction().await?;
        fence::tokio_postgres::admit(&tx, &name, token(8)).await?;
        let mut register = open(&url, &name).await?;
        let stale = tokio::spawn(async move { register.write(1, Some(token(7))).await });
        lock_waits::in_postgres(&url, &stale, "query LIKE '%tenure_fence%'").await?;
        if commits {
            tx.commit().await?;
        } else {
            tx.rollback().await?;
        }
        // A rolled-back token was never seen.
        ensure!(stale.await??.is_err() == commits);
    }
    Ok(())
}

async fn another_token_waits_until_the_transaction_ends_in_mysql(url: String) -> Result<()> {
    let name = unique("locked");
    let mut db = Conn::new(Opts::from_url(&url)?).await?;
    // The row exists: two first admissions at once could be a deadlock, which is not tested here.
    open(&url, &name).await?.write(0, Some(token(1))).await??;
    for commits in [false, true] {
        let mut tx = db.start_transaction(TxOpts::default()).await?;
        fence::mysql_async::admit(&mut tx, &name, token(8)).await?;
        let mut register = open(&url, &name).await?;
        let stale = tokio::spawn(async move { register.write(1, Some(token(7))).await });
        lock_waits::in_mysql(&url, &stale, "trx_query LIKE '%tenure_fence%'").await?;
        if commits {
            tx.commit().await?;
        } else {
            tx.rollback().await?;
        }
        ensure!(stale.await??.is_err() == commits);
    }
    Ok(())
}
