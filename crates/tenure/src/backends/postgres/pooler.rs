//! Whether a transaction pooler is in front: does a connection keep its server process?
//!
//! A pooler that has many idle server connections to give usually gives the same one again, so
//! asking twice proves little. Here a second connection holds a transaction open meanwhile: with a
//! pooler that takes the server process away from the first.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::Type;

use super::fault;
use super::lanes::Lanes;
use super::lease::get;
use super::link::{Link, Sql};
use crate::error::Result;

/// Looks with two new connections, and gives them if they are what they seem to be.
pub(super) async fn probe(lanes: &Lanes) -> Result<Option<[Arc<Link>; 2]>> {
    let (one, two) = (Arc::new(lanes.open_apart().await?), Arc::new(lanes.open_apart().await?));
    if process(&one).await? != one.pid || one.pid == two.pid {
        return Ok(None);
    }
    two.batch("BEGIN".to_owned()).await?;
    // A pooler with a single server connection would let us wait for the other's end.
    let again = tokio::time::timeout(PATIENCE, process(&one)).await;
    two.batch("ROLLBACK".to_owned()).await?;
    let same = match again {
        Ok(pid) => pid? == one.pid,
        Err(_) => false,
    };
    Ok(same.then_some([one, two]))
}

/// The server process that answers now.
pub(super) async fn process(link: &Arc<Link>) -> Result<i32> {
    let rows = link.ask(&PROCESS, vec![]).await?;
    get(rows.first().ok_or_else(|| fault::odd("its process"))?, 0)
}

static PROCESS: Sql = Sql { text: "SELECT pg_backend_pid()", types: NONE };
const NONE: &[Type] = &[];
const PATIENCE: Duration = Duration::from_secs(3);
