//! Removes rows that expired long ago, in small batches, about once a minute per client.
//!
//! The token of an insert is drawn before its row is locked. So a row may disappear only while no
//! statement that could insert it is running: otherwise the insert could write a token that is
//! lower than that of a grant in between. The sweep of leases therefore locks the table against
//! writers, for some milliseconds, and gives up at once if it would have to wait for that.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_postgres::types::Type;

use super::config::LockMode;
use super::connection::pool::Pool;
use super::connection::statement::{Sql, values};
use super::layout::columns::{bytes_literal, get};
use crate::error::Result;
use crate::support::backoff::jitter;

/// Whether a row may be removed: it ended a minute ago, and has no live waiter and no tombstone.
macro_rules! expired {
    () => {
        "until < clock_timestamp() - interval '1 minute' AND NOT EXISTS (SELECT 1 \
         FROM jsonb_array_elements(queue || gone) e \
         WHERE (e->>'u')::timestamptz > clock_timestamp())"
    };
}

const EXPIRED: &str = expired!();
/// Reads the next rows after $1: how many of them may be removed, and the last key.
static FIND_EXPIRED: Sql = Sql {
    text: concat!(
        "SELECT count(*) FILTER (WHERE ",
        expired!(),
        ") AS expired, (array_agg(key ORDER BY key DESC))[1] AS last \
         FROM (SELECT key, until, queue, gone FROM @.tenure_lease \
           WHERE key > $1 ORDER BY key LIMIT 2000) s"
    ),
    types: &[Type::BYTEA],
};
/// Removes rows of the registry that are an hour old and have neither a live waiter nor a session.
static DELETE_FROM_REGISTRY: Sql = Sql {
    text: "DELETE FROM @.tenure_board b WHERE (mode, key) IN (SELECT mode, key FROM @.tenure_board \
           WHERE since < clock_timestamp() - interval '1 hour' LIMIT 1000 FOR UPDATE SKIP LOCKED) \
           AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements(queue) e \
             WHERE (e->>'u')::timestamptz > clock_timestamp()) \
           AND (owner IS NULL OR NOT EXISTS (SELECT 1 FROM pg_stat_activity a \
             WHERE a.pid = b.pid))",
    types: &[],
};
/// Removes rows of `mode=row` that have no registry entry. A locked row cannot be deleted, and a
/// deleted one cannot be locked: the next acquire inserts it again.
static DELETE_ROWS: Sql = Sql {
    text: "DELETE FROM @.tenure_row WHERE key IN (SELECT r.key FROM @.tenure_row r \
           WHERE NOT EXISTS (SELECT 1 FROM @.tenure_board b \
             WHERE b.mode = 'row' AND b.key = r.key) \
           LIMIT 1000 FOR UPDATE SKIP LOCKED)",
    types: &[],
};

/// How many batches one sweep removes at most.
const MAX_BATCHES: u32 = 50;
/// The pause between two batches.
const PAUSE: Duration = Duration::from_millis(20);

/// Sweeps in a task for as long as the client exists.
pub(super) fn start(pool: &Arc<Pool>) {
    drop(tokio::spawn(run(Arc::downgrade(pool), pool.config.sweep)));
}

async fn run(pool: Weak<Pool>, interval: Duration) {
    let mut cursor = Vec::new();
    loop {
        // With jitter: clients must not sweep all at the same moment.
        tokio::time::sleep(jitter(interval, interval + interval / 2)).await;
        let Some(pool) = pool.upgrade() else { return };
        let swept = match pool.config.mode {
            LockMode::Lease => sweep_leases(&pool, &mut cursor).await,
            LockMode::Session | LockMode::Row => sweep_registry(&pool).await,
        };
        // No caller waits for the result, and the next sweep repeats what failed.
        drop(swept);
    }
}

/// Continues after the key at which the previous sweep stopped, as long as each batch has expired
/// rows.
async fn sweep_leases(pool: &Arc<Pool>, cursor: &mut Vec<u8>) -> Result<()> {
    for _ in 0..MAX_BATCHES {
        let rows = pool.query(&FIND_EXPIRED, values![cursor.clone()]).await?;
        let Some(row) = rows.first() else { return Ok(()) };
        let expired: i64 = get(row, "expired")?;
        let last: Option<Vec<u8>> = get(row, "last")?;
        let Some(last) = last else {
            cursor.clear();
            return Ok(());
        };
        if expired > 0 {
            let text = delete_text(cursor, &last);
            pool.connection().await?.batch(text).await?;
        }
        *cursor = last;
        if expired == 0 {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Deletes expired rows in a range of keys. A single statement, so that it is one transaction also
/// beside others on its connection. It checks the conditions again: a row may have been acquired
/// since it was found.
fn delete_text(from: &[u8], to: &[u8]) -> String {
    let from = bytes_literal(from);
    let to = bytes_literal(to);
    format!(
        "DO $sweep$ BEGIN
  PERFORM set_config('lock_timeout', '100ms', true);
  LOCK TABLE @.tenure_lease IN SHARE ROW EXCLUSIVE MODE;
  DELETE FROM @.tenure_lease WHERE key > {from} AND key <= {to} AND {EXPIRED};
END $sweep$"
    )
}

async fn sweep_registry(pool: &Arc<Pool>) -> Result<()> {
    pool.query(&DELETE_FROM_REGISTRY, vec![]).await?;
    pool.query(&DELETE_ROWS, vec![]).await?;
    Ok(())
}
