//! In a SQLite database.

use std::time::Duration;

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rusqlite::{Connection, TransactionBehavior};
use tenure::FencingToken;
use tenure::fence;

use super::{Answer, Register, answer};

struct Sqlite {
    db: Connection,
    name: String,
}

pub(super) fn prepare(path: &str) -> Result<()> {
    let db = connect(path)?;
    db.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE register (name PRIMARY KEY, n)")?;
    Ok(fence::rusqlite::create(&db)?)
}

pub(super) fn open(path: &str, name: &str) -> Result<impl Register + use<>> {
    let db = connect(path)?;
    db.execute("INSERT INTO register VALUES (?1, 0) ON CONFLICT DO NOTHING", [name])?;
    Ok(Sqlite { db, name: name.to_owned() })
}

/// Nobody cuts the power here, and a sync per write would take most of the time.
fn connect(path: &str) -> Result<Connection> {
    let db = Connection::open(path)?;
    db.busy_timeout(Duration::from_secs(60))?;
    db.execute_batch("PRAGMA synchronous = OFF")?;
    Ok(db)
}

impl Sqlite {
    fn read(&mut self, token: Option<FencingToken>) -> Answer<i64> {
        if let Some(token) = token
            && let Err(stale) = answer(fence::rusqlite::contact(&mut self.db, &self.name, token))?
        {
            return Ok(Err(stale));
        }
        let sql = "SELECT n FROM register WHERE name = ?1";
        Ok(Ok(self.db.query_row(sql, [&self.name], |row| row.get(0))?))
    }

    fn write(&mut self, number: i64, token: Option<FencingToken>) -> Answer<()> {
        let tx = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if let Some(token) = token
            && let Err(stale) = answer(fence::rusqlite::admit(&tx, &self.name, token))?
        {
            return Ok(Err(stale));
        }
        tx.execute("UPDATE register SET n = ?2 WHERE name = ?1", (&self.name, number))?;
        tx.commit()?;
        Ok(Ok(()))
    }
}

impl Register for Sqlite {
    fn read(&mut self, token: Option<FencingToken>) -> BoxFuture<'_, Answer<i64>> {
        std::future::ready(Sqlite::read(self, token)).boxed()
    }

    fn write(&mut self, number: i64, token: Option<FencingToken>) -> BoxFuture<'_, Answer<()>> {
        std::future::ready(Sqlite::write(self, number, token)).boxed()
    }

    fn spoil(&mut self, fence: Option<&str>) -> BoxFuture<'_, Result<()>> {
        let name = &self.name;
        let done = match fence {
            None => self.db.execute("DELETE FROM tenure_fence WHERE resource = ?1", [name]),
            Some(text) => {
                let sql = "UPDATE tenure_fence SET token = ?2 WHERE resource = ?1";
                self.db.execute(sql, (name, text))
            }
        };
        std::future::ready(done.map(drop).map_err(Into::into)).boxed()
    }
}
