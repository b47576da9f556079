//! The shop: how many pieces are left of each article, and what was ordered.

mod mysql;
mod postgres;
mod redis;
mod sqlite;

use anyhow::{Result, bail};
use async_trait::async_trait;
use tenure::FencingToken;
use tenure::fence::Refused;

/// A shop, with a fence for each article. A buyer without a token is not checked.
#[async_trait]
pub(crate) trait Shop {
    /// Removes all orders and sets the stock of each article to this number of pieces.
    async fn stock_up(&mut self, articles: u32, pieces: i64) -> Result<()>;
    /// The number of pieces left; `None` if the token is refused.
    async fn read_stock(
        &mut self,
        article: u32,
        token: Option<FencingToken>,
    ) -> Result<Option<i64>>;
    /// Sets the stock to `left` and writes the order. Returns false if the token is refused.
    async fn sell(&mut self, article: u32, left: i64, token: Option<FencingToken>) -> Result<bool>;
    /// The number of pieces that were ordered.
    async fn sold(&mut self) -> Result<u32>;
    /// Removes the shop, if it exists.
    async fn close(&mut self) -> Result<()>;
}

pub(crate) async fn open(url: &str) -> Result<Box<dyn Shop>> {
    Ok(match recognize(url)? {
        Kind::Mysql => Box::new(mysql::open(url).await?),
        Kind::Postgres => Box::new(postgres::open(url).await?),
        Kind::Redis => Box::new(redis::open(url).await?),
        Kind::Sqlite => Box::new(sqlite::open(url.trim_start_matches("sqlite://"))?),
    })
}

pub(crate) enum Kind {
    Mysql,
    Postgres,
    Redis,
    Sqlite,
}

/// The kind of shop that a URL names. The error does not repeat the URL, which may contain a
/// password.
pub(crate) fn recognize(url: &str) -> Result<Kind> {
    Ok(match url.split_once(':').map(|(scheme, _)| scheme) {
        Some("mysql") => Kind::Mysql,
        Some("postgres" | "postgresql") => Kind::Postgres,
        Some("redis") => Kind::Redis,
        Some("sqlite") => Kind::Sqlite,
        _ => bail!("there is no such shop; try postgres://, mysql:// or redis://"),
    })
}

/// The name of an article's fence.
fn resource(article: u32) -> String {
    format!("flash-sale/{article}")
}

/// Whether the fence admitted the token.
fn admitted<E>(result: Result<(), Refused<E>>) -> Result<bool>
where
    E: std::error::Error + Send + Sync + 'static,
{
    match result {
        Ok(()) => Ok(true),
        Err(Refused::Stale(_)) => Ok(false),
        Err(other) => Err(other.into()),
    }
}
