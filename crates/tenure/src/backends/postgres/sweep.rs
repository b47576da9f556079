//! Removes what expired long ago, in small batches, about once a minute per client.
//!
//! The token of an insert is drawn before its row is locked. So a row may only disappear while no
//! statement is running that could insert it: the sweep of leases locks the table against writers,
//! for some milliseconds, and gives up at once if it would have to wait.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_postgres::types::Type;

use super::lanes::Lanes;
use super::lease::get;
use super::link::{Sql, values};
use super::settings::Kind;
use crate::claim::Owner;
use crate::error::Result;

/// Sweeps for as long as the client lives.
pub(super) fn start(lanes: &Arc<Lanes>) {
    drop(tokio::spawn(run(Arc::downgrade(lanes), lanes.settings.sweep)));
}

async fn run(lanes: Weak<Lanes>, every: Duration) {
    let mut cursor = Vec::new();
    loop {
        // Not all clients at the same moment.
        let jitter = every / 512 * u32::from(Owner::random().client()[0]);
        tokio::time::sleep(every + jitter).await;
        let Some(lanes) = lanes.upgrade() else { return };
        let swept = match lanes.settings.mode {
            Kind::Lease => leases(&lanes, &mut cursor).await,
            Kind::Session | Kind::Row => board(&lanes).await,
        };
        // Nobody waits for it, and somebody will sweep again.
        drop(swept);
    }
}

/// Goes on from where it stopped, as long as there is much to do.
async fn leases(lanes: &Arc<Lanes>, cursor: &mut Vec<u8>) -> Result<()> {
    for _ in 0..BATCHES {
        let rows = lanes.ask(&FIND, values![cursor.clone()]).await?;
        let Some(row) = rows.first() else { return Ok(()) };
        let (found, last): (i64, Option<Vec<u8>>) = (get(row, 0)?, get(row, 1)?);
        let Some(last) = last else {
            cursor.clear();
            return Ok(());
        };
        if found > 0 {
            let text = delete(cursor, &last);
            lanes.pick().await?.batch(text).await?;
        }
        *cursor = last;
        if found == 0 {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// One statement, so that it is one transaction also beside others on its connection. The
/// conditions are looked at again: a row may have been taken since it was found.
fn delete(from: &[u8], to: &[u8]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!(
        "DO $sweep$ BEGIN
  PERFORM set_config('lock_timeout', '100ms', true);
  LOCK TABLE @.tenure_lease IN SHARE ROW EXCLUSIVE MODE;
  DELETE FROM @.tenure_lease WHERE key > '\\x{}' AND key <= '\\x{}' AND {EXPIRED};
END $sweep$",
        hex(from),
        hex(to)
    )
}

async fn board(lanes: &Arc<Lanes>) -> Result<()> {
    lanes.ask(&BOARD, vec![]).await?;
    lanes.ask(&ROWS, vec![]).await?;
    Ok(())
}

/// What may go: over for longer than a withdrawn claim is remembered, and nobody waits.
macro_rules! expired {
    () => {
        "until < clock_timestamp() - interval '1 minute' AND NOT EXISTS (SELECT 1 \
         FROM jsonb_array_elements(queue) e WHERE (e->>'u')::timestamptz > clock_timestamp())"
    };
}
const EXPIRED: &str = expired!();

/// Looks at the next rows after $1: how many may go, and the last of them.
static FIND: Sql = Sql {
    text: concat!(
        "SELECT count(*) FILTER (WHERE ",
        expired!(),
        "), (array_agg(key ORDER BY key DESC))[1] FROM (SELECT key, until, queue \
         FROM @.tenure_lease WHERE key > $1 ORDER BY key LIMIT 2000) s"
    ),
    types: &[Type::BYTEA],
};

/// The board is for people: what has not been touched for an hour and has no living process goes.
static BOARD: Sql = Sql {
    text: "DELETE FROM @.tenure_board b WHERE (mode, key) IN (SELECT mode, key FROM @.tenure_board \
           WHERE since < clock_timestamp() - interval '1 hour' LIMIT 1000 FOR UPDATE SKIP LOCKED) \
           AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements(queue) e \
             WHERE (e->>'u')::timestamptz > clock_timestamp()) \
           AND (owner IS NULL OR NOT EXISTS (SELECT 1 FROM pg_stat_activity a \
             WHERE a.pid = b.pid))",
    types: &[],
};

/// A locked row cannot be deleted, and one that is deleted cannot be locked: whoever comes next
/// makes it anew.
static ROWS: Sql = Sql {
    text: "DELETE FROM @.tenure_row WHERE key IN (SELECT r.key FROM @.tenure_row r \
           WHERE NOT EXISTS (SELECT 1 FROM @.tenure_board b \
             WHERE b.mode = 'row' AND b.key = r.key) \
           LIMIT 1000 FOR UPDATE SKIP LOCKED)",
    types: &[],
};

const BATCHES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);
