//! Whether a task waits for a row that another transaction has locked, as the server reports it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use tenure_conformance::context::{SOON, soon, until};
use tokio::task::JoinHandle;

use crate::registers::connect_postgres;

/// Returns when a session of PostgreSQL that this condition names waits, and fails if the task ends
/// first.
pub(crate) async fn in_postgres<T>(url: &str, task: &JoinHandle<T>, which: &str) -> Result<()> {
    let watcher = connect_postgres(url).await?;
    let waiting =
        format!("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND {which}");
    until(SOON, "a session that waits", || async {
        ensure!(!task.is_finished(), "it did not wait");
        let waits: i64 = watcher.query_one(&waiting, &[]).await?.get(0);
        Ok((waits > 0).then_some(()))
    })
    .await
}

/// Returns when a transaction of MySQL that this condition names waits, and fails if the task ends
/// first.
pub(crate) async fn in_mysql<T>(url: &str, task: &JoinHandle<T>, which: &str) -> Result<()> {
    let mut watcher = Conn::new(Opts::from_url(url)?).await?;
    let waiting = format!(
        "SELECT count(*) FROM information_schema.innodb_trx \
         WHERE trx_state = 'LOCK WAIT' AND {which}"
    );
    let polling = async {
        while watcher.query_first::<u64, _>(&waiting).await?.context("a count")? == 0 {
            ensure!(!task.is_finished(), "it did not wait");
            // InnoDB shows a cached state until no query has come for 100 ms.
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        Ok(())
    };
    soon("a session that waits", polling).await?
}
