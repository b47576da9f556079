//! Finds out whether a transaction pooler is in front of the server: does a connection keep its
//! server process?
//!
//! A pooler that has many idle server connections usually assigns the same one again, so that
//! reading the process id twice proves little. The probe therefore keeps a transaction open on a
//! second connection meanwhile: behind a pooler, the first connection then gets another server
//! process.
//!
//! Every mode has to know. Locks that end with a session cannot work behind a pooler at all. Leases
//! can, but what a session is told (LISTEN, `synchronous_commit`, the timeouts) is lost or, worse,
//! applies to the session of another client. So nothing is set and nothing is prepared before the
//! result of the probe is known.

use std::sync::Arc;
use std::time::Duration;

use super::Connection;
use super::pool::Pool;
use crate::backends::postgres::error;
use crate::error::{Error, ErrorKind, Result};

const READ_PID: &str = "SELECT pg_backend_pid()";
/// How long the first connection may take to respond while the second one is in a transaction.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Opens two connections, and returns them without any setup if no pooler is in front.
pub(crate) async fn probe(pool: &Pool) -> Result<Option<[Arc<Connection>; 2]>> {
    let one = Arc::new(pool.open_without_setup().await?);
    let two = Arc::new(pool.open_without_setup().await?);
    if read_pid(&one).await? != one.pid || one.pid == two.pid {
        return Ok(None);
    }
    let in_transaction = parse_pid(two.batch(format!("BEGIN; {READ_PID}")).await?)?;
    let again = tokio::time::timeout(PROBE_TIMEOUT, read_pid(&one)).await;
    two.batch("ROLLBACK".to_owned()).await?;
    let again = again.unwrap_or_else(|_| Err(undecided()))?;
    Ok((again == one.pid && in_transaction == two.pid).then_some([one, two]))
}

/// Reads the id of the server process that responds now. Where it is not `connection.pid`, a pooler
/// has given this connection another session.
pub(crate) async fn read_pid(connection: &Arc<Connection>) -> Result<i32> {
    parse_pid(connection.batch(READ_PID.to_owned()).await?)
}

/// A pooler that has no other server connection to assign, or a busy server.
fn undecided() -> Error {
    let limit = PROBE_TIMEOUT.as_millis();
    let message =
        format!("no response from PostgreSQL within {limit} ms while another transaction is open");
    Error::new(ErrorKind::Unavailable, message)
}

fn parse_pid(text: Option<String>) -> Result<i32> {
    let pid = text.and_then(|text| text.parse().ok());
    pid.ok_or_else(|| error::unexpected("no id of the server process"))
}
