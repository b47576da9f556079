//! Whether a transaction pooler is in front: does a connection keep its server process?
//!
//! A pooler that has many idle server connections to give usually gives the same one again, so
//! asking twice proves little. Here a second connection holds a transaction open meanwhile: with a
//! pooler that takes the server process away from the first.
//!
//! Every mode has to know. Locks that hang on a session cannot live there at all. Leases can, but
//! what a session is told is lost or, worse, told to somebody else's: the LISTEN, that commits are
//! waited for, the time-outs. So nothing is set, and nothing is prepared, before this is known.

use std::sync::Arc;
use std::time::Duration;

use super::fault;
use super::lanes::Lanes;
use super::link::Link;
use crate::error::{Error, ErrorKind, Result};

/// Looks with two new connections, and gives them, as they are, if they are what they seem to be.
pub(super) async fn probe(lanes: &Lanes) -> Result<Option<[Arc<Link>; 2]>> {
    let (one, two) = (Arc::new(lanes.open_bare().await?), Arc::new(lanes.open_bare().await?));
    if process(&one).await? != one.pid || one.pid == two.pid {
        return Ok(None);
    }
    let begun = number(two.batch(format!("BEGIN; {PROCESS}")).await?)?;
    let again = tokio::time::timeout(PATIENCE, process(&one)).await;
    two.batch("ROLLBACK".to_owned()).await?;
    let again = again.unwrap_or_else(|_| Err(undecided()))?;
    Ok((again == one.pid && begun == two.pid).then_some([one, two]))
}

/// The server process that answers now.
pub(super) async fn process(link: &Arc<Link>) -> Result<i32> {
    number(link.batch(PROCESS.to_owned()).await?)
}

/// A pooler that has no other server connection to give, or a server that is busy.
fn undecided() -> Error {
    let message = format!("no response within {PATIENCE:?} while another transaction is open");
    Error::new(ErrorKind::Unavailable, message)
}

fn number(text: Option<String>) -> Result<i32> {
    text.and_then(|text| text.parse().ok()).ok_or_else(|| fault::odd("its process"))
}

const PROCESS: &str = "SELECT pg_backend_pid()";
const PATIENCE: Duration = Duration::from_secs(3);
