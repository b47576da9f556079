//! Finding the master through the sentinels.

use redis::Value;

use super::dial::Dialer;
use super::from_redis;
use super::settings::{Address, Login};
use super::wire::Wire;
use crate::error::{Error, ErrorKind, Result};

/// The address of the master that the first sentinel to answer names.
pub(super) async fn find(
    dialer: &Dialer,
    sentinels: &[Address],
    name: &str,
    login: &Login,
) -> Result<Address> {
    let mut last = None;
    for sentinel in sentinels {
        let asking = ask(dialer, sentinel, name, login);
        match tokio::time::timeout(dialer.limits.connect, asking).await {
            Ok(Ok(master)) => return Ok(master),
            Ok(Err(error)) => last = Some(error),
            Err(_) => {
                let message = format!("no answer from the sentinel at {sentinel}");
                last = Some(Error::new(ErrorKind::Unavailable, message));
            }
        }
    }
    Err(last.unwrap_or_else(|| Error::new(ErrorKind::Invalid, "the URL names no sentinel")))
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
