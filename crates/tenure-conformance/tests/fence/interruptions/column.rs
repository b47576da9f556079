//! Holders of a row that is its own fence, by a column.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};
use tenure::FencingToken;

use super::schedule::{Holder, Outcome, SharedResource, Steps};

const CONTACT: &str = "UPDATE stock SET fence = ?2 WHERE item = ?1 AND fence <= ?2 RETURNING n";
const WRITE: &str = "UPDATE stock SET n = ?3, fence = ?2 WHERE item = ?1 AND fence <= ?2";

pub(super) struct FencedRow {
    path: String,
    name: String,
}

impl FencedRow {
    pub(super) fn new(url: &str, name: &str) -> Result<FencedRow> {
        let path = url.trim_start_matches("sqlite://").to_owned();
        let db = connect(&path)?;
        db.execute_batch(
            "CREATE TABLE IF NOT EXISTS stock
             (item TEXT PRIMARY KEY, n INTEGER, fence INTEGER NOT NULL DEFAULT 0)",
        )?;
        db.execute("INSERT INTO stock (item, n) VALUES (?1, 0)", [name])?;
        Ok(FencedRow { path, name: name.to_owned() })
    }
}

fn connect(path: &str) -> Result<Connection> {
    let db = Connection::open(path)?;
    db.busy_timeout(Duration::from_secs(30))?;
    db.execute_batch("PRAGMA synchronous = OFF")?;
    Ok(db)
}

#[async_trait(?Send)]
impl SharedResource for FencedRow {
    async fn holder(&self) -> Result<Box<dyn Holder>> {
        Ok(Box::new(ColumnHolder { db: connect(&self.path)?, name: self.name.clone() }))
    }
}

struct ColumnHolder {
    db: Connection,
    name: String,
}

#[async_trait(?Send)]
impl Holder for ColumnHolder {
    async fn add(&mut self, token: FencingToken, by: i64, steps: &Steps) -> Result<Outcome> {
        steps.idle().await;
        let values = (&self.name, token.as_i64());
        let read = self.db.query_row(CONTACT, values, |row| row.get::<_, i64>(0)).optional()?;
        let Some(number) = read else { return Ok(Outcome::Refused) };
        loop {
            steps.idle().await;
            let tx = self.db.transaction()?;
            let values = (&self.name, token.as_i64(), number + by);
            if tx.execute(WRITE, values)? == 0 {
                return Ok(Outcome::Refused);
            }
            if steps.is_rolled_back().await {
                continue;
            }
            tx.commit()?;
            return Ok(Outcome::Wrote);
        }
    }

    async fn settle(&mut self, token: FencingToken) -> Result<i64> {
        let values = (&self.name, token.as_i64());
        Ok(self.db.query_row(CONTACT, values, |row| row.get(0))?)
    }
}
