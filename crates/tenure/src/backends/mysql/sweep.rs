//! Sweeping: rows of keys that were not used for a minute are removed, in small batches. The floor
//! is raised above their tokens first, so that no token is ever granted twice.

use std::sync::Weak;
use std::time::Duration;

use super::config::LockMode;
use super::connection::Connection;
use super::layout::literals::hex;
use super::layout::rows;
use super::layout::schema::HOLDERS;
use super::layout::statements::{NOW, Statements};
use super::lease::LockTables;
use crate::error::Result;

/// Rows in one transaction: some milliseconds, during which no new key can get a row.
const BATCH: usize = 1000;
/// The pause before the next batch while there are more rows.
const NEXT_BATCH: Duration = Duration::from_secs(1);
/// The limit of one request.
const LIMIT: Duration = Duration::from_secs(5);

/// Sweeps a batch from time to time, until the client is dropped.
pub(super) async fn run(tables: Weak<LockTables>, every: Duration) {
    let mut after = Vec::new();
    loop {
        // A full batch means that there are more rows.
        let pause = if after.is_empty() { every } else { every.min(NEXT_BATCH) };
        tokio::time::sleep(pause).await;
        let Some(tables) = tables.upgrade() else { return };
        // After an error the next sweep begins at the start of the table.
        after = sweep_batch(&tables, &after).await.unwrap_or_default();
    }
}

/// Sweeps the rows after this key. Returns the last key of the batch, which is empty at the end of
/// the table.
async fn sweep_batch(tables: &LockTables, after: &[u8]) -> Result<Vec<u8>> {
    let statements = &tables.statements;
    let connection = tables.sweep_connection();
    let after = hex(after);
    let response = connection.execute(batch_end_sql(statements, &after), LIMIT).await?;
    let next: Vec<u8> = match response.last_row() {
        Some(row) => rows::value(row, "k")?,
        None => Vec::new(),
    };
    // No key has more than 512 bytes, and none begins with 255.
    let last = if next.is_empty() { hex([0xff]) } else { hex(&next) };
    connection.execute(sweep_sql(statements, &after, &last), LIMIT).await?;
    if statements.mode == LockMode::Row {
        sweep_row_locks(connection, statements, &after, &last).await?;
    }
    Ok(next)
}

/// Removes rows of `tenure_row_lock` without a record, except for those that are locked. In two
/// steps: a DELETE waits for locked rows, even for those that its subquery skips.
async fn sweep_row_locks(
    connection: &Connection,
    statements: &Statements,
    after: &str,
    last: &str,
) -> Result<()> {
    let lease = statements.lease;
    let free = format!(
        "SELECT k FROM tenure_row_lock o WHERE k>{after} AND k<={last} \
         AND NOT EXISTS (SELECT 1 FROM {lease} l WHERE l.k=o.k) FOR UPDATE SKIP LOCKED"
    );
    let response = connection.execute(free, LIMIT).await?;
    let found = response.result_sets.first().into_iter().flatten();
    let keys = found.map(|row| rows::value::<Vec<u8>>(row, "k").map(hex));
    let keys = keys.collect::<Result<Vec<_>>>()?.join(",");
    if !keys.is_empty() {
        let delete = format!("DELETE FROM tenure_row_lock WHERE k IN ({keys})");
        connection.execute(delete, LIMIT).await?;
    }
    Ok(())
}

/// Removes rows up to `last` that were not used for a minute, and raises the floor above their
/// tokens. The floor is locked before the tokens are read: a key whose row is swept here gets its
/// new row only after the floor has risen. A row whose holders live ends no earlier than they.
fn sweep_sql(statements: &Statements, after: &str, last: &str) -> String {
    let Statements { lease, waiter, .. } = statements;
    let old = format!("until<={NOW}-INTERVAL 1 MINUTE");
    let range = format!("k>{after} AND k<={last}");
    let holders = if statements.other_modes {
        format!("DELETE FROM {HOLDERS} WHERE {range} AND {old};")
    } else {
        String::new()
    };
    format!(
        "START TRANSACTION;SELECT n FROM tenure_floor WHERE id=1 FOR UPDATE;\
         UPDATE tenure_floor SET n=GREATEST(n,\
         (SELECT COALESCE(MAX(token),0) FROM {lease} WHERE {range})) WHERE id=1;\
         UPDATE {lease} SET queued=0 WHERE {range} AND {old} AND queued>0 AND NOT EXISTS \
         (SELECT 1 FROM {waiter} w WHERE w.k={lease}.k AND NOT w.{old});\
         DELETE FROM {lease} WHERE {range} AND {old} AND queued=0;\
         DELETE FROM {waiter} WHERE {range} AND {old};{holders}COMMIT"
    )
}

/// Reads the last key of the next full batch; no row if fewer rows are left.
fn batch_end_sql(statements: &Statements, after: &str) -> String {
    let lease = statements.lease;
    let skip = BATCH - 1;
    format!("SELECT k FROM {lease} WHERE k>{after} ORDER BY k LIMIT 1 OFFSET {skip}")
}
