//! What replicas have of grants and renewals, for `replicas=N`.

use std::time::Duration;

use redis::Value;

use super::config::Config;
use super::connection::Connection;
use super::error::from_redis;
use super::layout::scripts::ms;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;

/// Makes sure that as many replicas as the URL wants have what was written on this connection.
///
/// A lease that only the master has extended is none: a failover to a replica which has the grant
/// would let the next holder in at the end of the lease that was granted.
pub(super) async fn confirm(
    config: &Config,
    connection: &Connection,
    longest: Duration,
    key: &Key,
) -> Result<()> {
    let wanted = config.replicas;
    if wanted == 0 {
        return Ok(());
    }
    // The connection waits as well, so that the longest has to be below the limit of a request:
    // else this would look like a silent server.
    let limit = ms((config.limits.response / 2).min(longest));
    let response = connection.execute(redis::cmd("WAIT").arg(wanted).arg(limit)).await;
    let have = match response {
        Ok(Value::Int(have)) => have,
        Ok(_) => 0,
        Err(error) => return Err(from_redis(error, "redis")),
    };
    if have >= i64::from(wanted) {
        return Ok(());
    }
    let message = format!("{have} of {wanted} replicas have what the master says of `{key}`");
    Err(Error::new(ErrorKind::Unavailable, message))
}
