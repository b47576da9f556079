//! In a SQLite database.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use rusqlite::{Connection, TransactionBehavior};
use tenure::FencingToken;
use tenure::fence;

use super::{FenceResult, Register, split_stale};

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

/// No case cuts the power, and a sync for each write would take most of the time.
fn connect(path: &str) -> Result<Connection> {
    let db = Connection::open(path)?;
    db.busy_timeout(Duration::from_secs(60))?;
    db.execute_batch("PRAGMA synchronous = OFF")?;
    Ok(db)
}

#[async_trait]
impl Register for Sqlite {
    async fn read(&mut self, token: Option<FencingToken>) -> FenceResult<i64> {
        if let Some(token) = token
            && let Err(stale) =
                split_stale(fence::rusqlite::contact(&mut self.db, &self.name, token))?
        {
            return Ok(Err(stale));
        }
        let sql = "SELECT n FROM register WHERE name = ?1";
        Ok(Ok(self.db.query_row(sql, [&self.name], |row| row.get(0))?))
    }

    async fn read_shared(&mut self, token: FencingToken) -> FenceResult<i64> {
        let contact = fence::rusqlite::contact_shared(&mut self.db, &self.name, token);
        if let Err(stale) = split_stale(contact)? {
            return Ok(Err(stale));
        }
        let tx = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if let Err(stale) = split_stale(fence::rusqlite::admit_shared(&tx, &self.name, token))? {
            return Ok(Err(stale));
        }
        let sql = "SELECT n FROM register WHERE name = ?1";
        let number = tx.query_row(sql, [&self.name], |row| row.get(0))?;
        tx.commit()?;
        Ok(Ok(number))
    }

    async fn write(&mut self, number: i64, token: Option<FencingToken>) -> FenceResult<()> {
        let tx = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if let Some(token) = token
            && let Err(stale) = split_stale(fence::rusqlite::admit(&tx, &self.name, token))?
        {
            return Ok(Err(stale));
        }
        tx.execute("UPDATE register SET n = ?2 WHERE name = ?1", (&self.name, number))?;
        tx.commit()?;
        Ok(Ok(()))
    }

    async fn spoil(&mut self, fence: Option<&str>) -> Result<()> {
        let name = &self.name;
        let done = match fence {
            None => self.db.execute("DELETE FROM tenure_fence WHERE resource = ?1", [name]),
            Some(text) => {
                let sql = "UPDATE tenure_fence SET token = ?2 WHERE resource = ?1";
                self.db.execute(sql, (name, text))
            }
        };
        done?;
        Ok(())
    }
}
