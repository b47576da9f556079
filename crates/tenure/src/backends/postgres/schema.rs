//! The tables, and how they come to be there.

use super::fault;
use super::lanes::Lanes;
use super::link::{Link, Sql};
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;

/// The statements that make everything tenure needs in a PostgreSQL database, for all three modes.
///
/// They are run when a client connects and may create tables; `tenure schema postgres` prints them
/// for those who may not. They can be run again without harm.
pub const SCHEMA: &str = include_str!("schema.sql");

/// Makes the tables if they are not there.
pub(super) async fn provide(lanes: &Arc<Lanes>) -> Result<()> {
    let link = lanes.pick().await?;
    if is_there(&link).await? {
        return Ok(());
    }
    // One at a time: `IF NOT EXISTS` alone fails when two come at the same moment. A lock of the
    // transaction is no trouble behind a pooler.
    let text = format!("BEGIN; SELECT pg_advisory_xact_lock({ALONE}); {SCHEMA} COMMIT");
    let made = link.batch(text).await;
    if made.is_err() {
        // Leaves the failed transaction; the connection is ours alone only in name.
        link.batch("ROLLBACK".to_owned()).await?;
        if is_there(&link).await? {
            return Ok(());
        }
    }
    made.map(drop).map_err(|error| match error.kind() {
        ErrorKind::Denied => {
            let user = &lanes.settings.user;
            let message = format!(
                "the tables of tenure are missing, and `{user}` may not create them; let one who \
                 may run `tenure schema postgres | psql`"
            );
            Error::new(ErrorKind::Denied, message).with_source(error)
        }
        _ => error,
    })
}

async fn is_there(link: &Arc<Link>) -> Result<bool> {
    let rows = link.ask(&IS_THERE, vec![]).await?;
    let row = rows.first().ok_or_else(|| fault::odd("its tables"))?;
    row.try_get(0).map_err(fault::from_server)
}

static IS_THERE: Sql = Sql {
    text: "SELECT to_regclass('tenure_token') IS NOT NULL AND to_regclass('tenure_lease') IS NOT \
           NULL AND to_regclass('tenure_board') IS NOT NULL AND to_regclass('tenure_row') IS NOT \
           NULL",
    types: &[],
};

/// The number under which those who make the tables exclude each other: `tenure` in ASCII.
const ALONE: u64 = 0x7465_6e75_7265;
