//! Finding the master through the sentinels.

use std::collections::HashMap;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;

use super::dial::Dialer;
use super::from_redis;
use super::settings::{Address, Login};
use super::wire::Wire;
use crate::error::{Error, ErrorKind, Result};

/// The address of the master that most sentinels name; all are asked at once, so that silent ones
/// cost nothing as long as most are there. Where they are not, the one named most often counts: the
/// server itself has to confirm that it is a master.
pub(super) async fn find(
    dialer: &Dialer,
    sentinels: &[Address],
    name: &str,
    login: &Login,
) -> Result<Address> {
    let asking = sentinels.iter().map(|sentinel| ask_bounded(dialer, sentinel, name, login));
    let mut asking: FuturesUnordered<_> = asking.collect();
    let (mut named, mut last) = (HashMap::<Address, usize>::new(), None);
    while let Some(answer) = asking.next().await {
        let master = match answer {
            Ok(master) => master,
            Err(error) => {
                last = Some(error);
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
    let nobody = || Error::new(ErrorKind::Invalid, "the URL names no sentinel");
    most.map(|(master, _)| master).ok_or_else(|| last.unwrap_or_else(nobody))
}

async fn ask_bounded(
    dialer: &Dialer,
    sentinel: &Address,
    name: &str,
    login: &Login,
) -> Result<Address> {
    let asking = ask(dialer, sentinel, name, login);
    tokio::time::timeout(dialer.limits.connect, asking).await.unwrap_or_else(|_| {
        let message = format!("no answer from the sentinel at {sentinel}");
        Err(Error::new(ErrorKind::Unavailable, message))
    })
}

async fn ask(dialer: &Dialer, sentinel: &Address, name: &str, login: &Login) -> Result<Address> {
    let wire = dialer.connect(sentinel, login, None).await?;
    let command = redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).to_owned();
    let at = format!("the sentinel at {sentinel}");
    let answer = wire.ask(&command).await.map_err(|error| from_redis(error, &at))?;
    let found: Option<(String, u16)> = redis::from_redis_value(answer).ok();
    let Some((host, port)) = found else {
        let message = format!("{at} knows no master `{}`", name.escape_debug());
        return Err(Error::new(ErrorKind::Unavailable, message));
    };
    Ok(Address::Tcp(host, port))
}

/// A sentinel may name a server that is not the master yet, or no longer.
pub(super) async fn check_role(wire: &Wire, name: &str, address: &Address) -> Result<()> {
    let answer = wire.ask(&redis::cmd("ROLE")).await;
    let answer = answer.map_err(|error| from_redis(error, &format!("redis at {address}")))?;
    let role = match answer {
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
