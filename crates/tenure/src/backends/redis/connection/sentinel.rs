//! Finding the master by querying the sentinels.

use std::collections::HashMap;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;

use super::Connection;
use super::dial::Dialer;
use crate::backends::redis::config::{Address, DatabaseLogin};
use crate::backends::redis::error::from_redis;
use crate::error::{Error, ErrorKind, Result};

/// The address of the master that most sentinels name.
///
/// All of them are queried at once, so that silent ones cost nothing as long as a majority is
/// there. Without a majority, the address named most often counts: the server itself has to confirm
/// that it is a master.
pub(crate) async fn find_master(
    dialer: &Dialer,
    sentinels: &[Address],
    name: &str,
    login: &DatabaseLogin,
) -> Result<Address> {
    let queries = sentinels.iter().map(|sentinel| query_bounded(dialer, sentinel, name, login));
    let mut queries: FuturesUnordered<_> = queries.collect();
    let mut named = HashMap::<Address, usize>::new();
    let mut last_error = None;
    while let Some(response) = queries.next().await {
        let master = match response {
            Ok(master) => master,
            Err(error) => {
                last_error = Some(error);
                continue;
            }
        };
        let count = named.entry(master.clone()).or_default();
        *count += 1;
        if *count > sentinels.len() / 2 {
            return Ok(master);
        }
    }
    let most = named.into_iter().max_by_key(|(_, count)| *count);
    let no_sentinel = || Error::new(ErrorKind::Invalid, "the URL names no sentinel");
    most.map(|(master, _)| master).ok_or_else(|| last_error.unwrap_or_else(no_sentinel))
}

async fn query_bounded(
    dialer: &Dialer,
    sentinel: &Address,
    name: &str,
    login: &DatabaseLogin,
) -> Result<Address> {
    let limit = dialer.limits.connect;
    let query = query(dialer, sentinel, name, login);
    tokio::time::timeout(limit, query).await.unwrap_or_else(|_| {
        Err(Error::timed_out(format_args!("the sentinel at {sentinel}"), limit))
    })
}

async fn query(
    dialer: &Dialer,
    sentinel: &Address,
    name: &str,
    login: &DatabaseLogin,
) -> Result<Address> {
    let connection = dialer.open(sentinel, login, false).await?;
    let command = redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).to_owned();
    let at = format!("the sentinel at {sentinel}");
    let response = connection.execute(&command).await.map_err(|error| from_redis(error, &at))?;
    let found: Option<(String, u16)> = redis::from_redis_value(response).ok();
    let Some((host, port)) = found else {
        let message = format!("{at} knows no master `{}`", name.escape_debug());
        return Err(Error::new(ErrorKind::Unavailable, message));
    };
    Ok(Address::Tcp(host, port))
}

/// Makes sure that the server is a master: a sentinel may name one that is not yet, or no longer.
pub(crate) async fn check_role(
    connection: &Connection,
    name: &str,
    address: &Address,
) -> Result<()> {
    let response = connection.execute(&redis::cmd("ROLE")).await;
    let response = response.map_err(|error| from_redis(error, &format!("redis at {address}")))?;
    let role = match response {
        Value::Array(mut parts) if !parts.is_empty() => {
            redis::from_redis_value(parts.swap_remove(0)).unwrap_or_default()
        }
        _ => String::new(),
    };
    if role == "master" {
        return Ok(());
    }
    let message = format!("the sentinels name {address} as master of `{name}`, but it is not one");
    Err(Error::new(ErrorKind::Unavailable, message))
}
