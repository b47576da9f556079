//! Resources that hold one number, each in a store with a fence.

mod file;
mod http;
mod mysql;
mod postgres;
mod redis;
mod sqlite;

use anyhow::{Context, Result};
use futures_util::future::BoxFuture;
use tenure::FencingToken;
use tenure::fence::{Refused, Stale};

pub(crate) use http::{Numbers, next_message, serve};
pub(crate) use postgres::connect as connect_postgres;

/// What a register answers: refused, or what was asked for.
pub(crate) type Answer<T> = Result<Result<T, Stale>>;

/// A number that is read and written, with the token or, to see what happens then, without.
pub(crate) trait Register: Send {
    fn read(&mut self, token: Option<FencingToken>) -> BoxFuture<'_, Answer<i64>>;
    fn write(&mut self, number: i64, token: Option<FencingToken>) -> BoxFuture<'_, Answer<()>>;
    /// Loses the fence's data, or puts this in its place.
    fn spoil(&mut self, fence: Option<&str>) -> BoxFuture<'_, Result<()>>;
}

/// Opens a register of this name, which is 0 if it is new.
pub(crate) async fn open(url: &str, name: &str) -> Result<Box<dyn Register>> {
    let (scheme, rest) = url.split_once("://").context("SCHEME://PLACE")?;
    Ok(match scheme {
        "file" => Box::new(file::open(rest, name)?),
        "http" => Box::new(http::open(rest, name).await?),
        "mysql" => Box::new(mysql::open(url, name).await?),
        "postgres" => Box::new(postgres::open(url, name).await?),
        "redis" => Box::new(redis::open(url, name).await?),
        "sqlite" => Box::new(sqlite::open(rest, name)?),
        other => anyhow::bail!("there is no register `{other}`"),
    })
}

/// Makes the tables, before anybody comes.
pub(crate) async fn prepare(url: &str) -> Result<()> {
    match url.split_once("://").map(|(scheme, _)| scheme) {
        Some("mysql") => mysql::prepare(url).await,
        Some("postgres") => postgres::prepare(url).await,
        Some("sqlite") => sqlite::prepare(url.trim_start_matches("sqlite://")),
        _ => Ok(()),
    }
}

/// Sets the refusal apart from what went wrong.
pub(crate) fn answer<T, E>(result: Result<T, Refused<E>>) -> Answer<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Refused::Stale(stale)) => Ok(Err(stale)),
        Err(other) => Err(other.into()),
    }
}

/// Whether the fence let the token in.
pub(crate) fn admitted<T, E>(result: Result<T, Refused<E>>) -> Result<bool>
where
    E: std::error::Error + Send + Sync + 'static,
{
    Ok(answer(result)?.is_ok())
}
