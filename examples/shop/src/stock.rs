//! The stock. A holder that was paused past its lease can still come here: the fence refuses it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use sqlx::PgPool;
use tenure::FencingToken;
use tenure::fence::{self, Fenced};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Where the stock is.
#[derive(Clone)]
#[cfg_attr(not(test), expect(dead_code, reason = "the stock in memory is for tests"))]
pub(crate) enum Stock {
    /// For tests with paused time.
    Memory(Arc<MemoryStock>),
    Postgres(PgPool),
}

/// Each item with its own fence: tokens of different locks cannot be compared.
pub(crate) struct MemoryStock {
    items: HashMap<String, Fenced<i64>>,
    pieces: AtomicI64,
}

#[cfg(test)]
impl MemoryStock {
    pub(crate) fn new(items: &[(&str, i64)]) -> MemoryStock {
        let pieces = AtomicI64::new(items.iter().map(|(_, n)| n).sum());
        let fenced = |(item, n): &(&str, i64)| ((*item).to_owned(), Fenced::new(*n));
        MemoryStock { items: items.iter().map(fenced).collect(), pieces }
    }
}

/// Why nothing was sold.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StockError {
    SoldOut,
    Unknown,
}

impl Stock {
    /// The tables, and something to sell.
    pub(crate) async fn create(&self) -> Result<(), BoxError> {
        let Stock::Postgres(pool) = self else { return Ok(()) };
        let mut db = pool.acquire().await?;
        fence::sqlx::create(&mut *db).await?;
        let table = "CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, n bigint NOT NULL)";
        sqlx::query(table).execute(&mut *db).await?;
        let items = "INSERT INTO stock VALUES ('42', 100), ('43', 1) ON CONFLICT DO NOTHING";
        sqlx::query(items).execute(&mut *db).await?;
        Ok(())
    }

    /// Sells one piece under the lock of this item. Returns how many are left.
    pub(crate) async fn sell(&self, item: &str, token: FencingToken) -> Result<i64, BoxError> {
        match self {
            Stock::Memory(stock) => {
                let item = stock.items.get(item).ok_or(StockError::Unknown)?;
                let mut n = item.admit(token)?;
                *n = one_less(*n)?;
                stock.pieces.fetch_sub(1, Ordering::Relaxed);
                Ok(*n)
            }
            Stock::Postgres(pool) => {
                let mut tx = pool.begin().await?;
                // First, before the read: a stale holder would sell what is no longer there.
                fence::sqlx::admit(&mut tx, &format!("stock/{item}"), token).await?;
                let read = sqlx::query_scalar("SELECT n FROM stock WHERE item = $1").bind(item);
                let n: Option<i64> = read.fetch_optional(&mut *tx).await?;
                let left = one_less(n.ok_or(StockError::Unknown)?)?;
                let write = sqlx::query("UPDATE stock SET n = $2 WHERE item = $1").bind(item);
                write.bind(left).execute(&mut *tx).await?;
                tx.commit().await?;
                Ok(left)
            }
        }
    }

    /// How many pieces there are of all items.
    pub(crate) async fn pieces(&self) -> Result<i64, BoxError> {
        match self {
            Stock::Memory(stock) => Ok(stock.pieces.load(Ordering::Relaxed)),
            Stock::Postgres(pool) => {
                let sum = sqlx::query_scalar("SELECT coalesce(sum(n), 0)::bigint FROM stock");
                Ok(sum.fetch_one(pool).await?)
            }
        }
    }
}

fn one_less(n: i64) -> Result<i64, StockError> {
    if n > 0 { Ok(n - 1) } else { Err(StockError::SoldOut) }
}

impl fmt::Display for StockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StockError::SoldOut => "it is sold out",
            StockError::Unknown => "there is no such item",
        })
    }
}

impl std::error::Error for StockError {}
