//! Whether a task waits for a row that somebody else has locked, as the server tells it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use tenure_conformance::bench::{SOON, soon, until};
use tokio::task::JoinHandle;

use crate::registers::connect_postgres;

/// Returns when a session that this condition names waits, and fails if the task ends first.
pub(crate) async fn in_postgres<T>(url: &str, task: &JoinHandle<T>, which: &str) -> Result<()> {
    let watcher = connect_postgres(url).await?;
    let waiting =
        format!("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND {which}");
    until(SOON, "somebody who waits", || async {
        ensure!(!task.is_finished(), "it did not wait");
        let waits: i64 = watcher.query_one(&waiting, &[]).await?.get(0);
        Ok((waits > 0).then_some(()))
    })
    .await
}

/// The same.
pub(crate) async fn in_mysql<T>(url: &str, task: &JoinHandle<T>, which: &str) -> Result<()> {
    let mut watcher = Conn::new(Opts::from_url(url)?).await?;
    let waiting = format!(
        "SELECT count(*) FROM information_schema.innodb_trx \
         WHERE trx_state = 'LOCK WAIT' AND {which}"
    );
    let looking = async {
        while watcher.query_first::<u64, _>(&waiting).await?.context("a count")? == 0 {
            ensure!(!task.is_finished(), "it did not wait");
            // InnoDB shows old news until nobody has looked for 100 ms.
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        Ok(())
    };
    soon("somebody who waits", looking).await?
}
