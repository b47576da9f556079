//! Registers: resources that hold one number, each in a store with a fence.

mod file;
mod http;
mod memory;
mod mysql;
mod postgres;
mod redis;
mod sqlite;
mod sqlx;

use anyhow::{Context, Result};
use async_trait::async_trait;
use tenure::FencingToken;
use tenure::fence::{Refused, Stale};

pub(crate) use http::{Numbers, next_message, serve};
pub(crate) use postgres::connect as connect_postgres;
pub(crate) use sqlx::url as sqlx_url;

/// The result of an operation under a fence: outside, whether the test could run it; inside,
/// whether the fence admitted it.
pub(crate) type FenceResult<T> = Result<Result<T, Stale>>;

/// A number that is read and written, with the token or, to see what happens then, without.
#[async_trait]
pub(crate) trait Register: Send {
    async fn read(&mut self, token: Option<FencingToken>) -> FenceResult<i64>;
    /// As a reader of a shared lock. In a database the token is shown twice, as a first contact and
    /// in the transaction of the read.
    async fn read_shared(&mut self, token: FencingToken) -> FenceResult<i64>;
    async fn write(&mut self, number: i64, token: Option<FencingToken>) -> FenceResult<()>;
    /// Loses the fence's data, or puts this in its place.
    async fn spoil(&mut self, fence: Option<&str>) -> Result<()>;
}

/// Opens a register of this name, which is 0 if it is new.
pub(crate) async fn open(url: &str, name: &str) -> Result<Box<dyn Register>> {
    if url == "memory:" {
        return Ok(Box::new(memory::open(name)));
    }
    let (scheme, rest) = url.split_once("://").context("SCHEME://ADDRESS")?;
    Ok(match scheme {
        "file" => Box::new(file::open(rest, name)?),
        "http" => Box::new(http::open(rest, name).await?),
        "mysql" => Box::new(mysql::open(url, name).await?),
        "postgres" => Box::new(postgres::open(url, name).await?),
        "redis" => Box::new(redis::open(url, name).await?),
        "sqlite" => Box::new(sqlite::open(rest, name)?),
        "sqlx+mysql" => Box::new(sqlx::mysql::open(url, name).await?),
        "sqlx+postgres" => Box::new(sqlx::postgres::open(url, name).await?),
        other => anyhow::bail!("there is no register `{other}`"),
    })
}

/// Creates the tables, before any case runs.
pub(crate) async fn prepare(url: &str) -> Result<()> {
    match url.split_once("://").map(|(scheme, _)| scheme) {
        Some("mysql") => mysql::prepare(url).await,
        Some("postgres") => postgres::prepare(url).await,
        Some("sqlite") => sqlite::prepare(url.trim_start_matches("sqlite://")),
        Some("sqlx+mysql") => sqlx::mysql::prepare(url).await,
        Some("sqlx+postgres") => sqlx::postgres::prepare(url).await,
        _ => Ok(()),
    }
}

/// Separates the refusal of a stale token from other errors.
pub(crate) fn split_stale<T, E>(result: Result<T, Refused<E>>) -> FenceResult<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Refused::Stale(stale)) => Ok(Err(stale)),
        Err(other) => Err(other.into()),
    }
}

/// Whether the fence admitted the token.
pub(crate) fn admitted<T, E>(result: Result<T, Refused<E>>) -> Result<bool>
where
    E: std::error::Error + Send + Sync + 'static,
{
    Ok(split_stale(result)?.is_ok())
}
