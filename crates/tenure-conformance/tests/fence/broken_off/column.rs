//! Holders of a row that is its own fence.

use std::time::Duration;

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use rusqlite::{Connection, OptionalExtension};
use tenure::FencingToken;

use super::play::{Ground, Holder, Outcome, Steps};

pub(super) struct Row {
    path: String,
    name: String,
}

impl Row {
    pub(super) fn new(url: &str, name: &str) -> Result<Row> {
        let path = url.trim_start_matches("sqlite://").to_owned();
        let db = connect(&path)?;
        db.execute_batch(
            "CREATE TABLE IF NOT EXISTS stock
             (item TEXT PRIMARY KEY, n INTEGER, fence INTEGER NOT NULL DEFAULT 0)",
        )?;
        db.execute("INSERT INTO stock (item, n) VALUES (?1, 0)", [name])?;
        Ok(Row { path, name: name.to_owned() })
    }
}

fn connect(path: &str) -> Result<Connection> {
    let db = Connection::open(path)?;
    db.busy_timeout(Duration::from_secs(30))?;
    db.execute_batch("PRAGMA synchronous = OFF")?;
    Ok(db)
}

impl Ground for Row {
    fn open(&self) -> LocalBoxFuture<'_, Result<Box<dyn Holder>>> {
        async move {
            let holder = Column { db: connect(&self.path)?, name: self.name.clone() };
            Ok(Box::new(holder) as Box<dyn Holder>)
        }
        .boxed_local()
    }
}

struct Column {
    db: Connection,
    name: String,
}

impl Holder for Column {
    fn change<'a>(
        &'a mut self,
        token: FencingToken,
        by: i64,
        steps: &'a Steps,
    ) -> LocalBoxFuture<'a, Result<Outcome>> {
        async move {
            steps.rest().await;
            let values = (&self.name, token.as_i64());
            let read = self.db.query_row(CONTACT, values, |row| row.get::<_, i64>(0)).optional()?;
            let Some(number) = read else { return Ok(Outcome::Refused) };
            loop {
                steps.rest().await;
                let tx = self.db.transaction()?;
                let values = (&self.name, token.as_i64(), number + by);
                if tx.execute(WRITE, values)? == 0 {
                    return Ok(Outcome::Refused);
                }
                if steps.breaks().await {
                    continue;
                }
                tx.commit()?;
                return Ok(Outcome::Wrote);
            }
        }
        .boxed_local()
    }

    fn settle(&mut self, token: FencingToken) -> LocalBoxFuture<'_, Result<i64>> {
        let values = (&self.name, token.as_i64());
        let read = self.db.query_row(CONTACT, values, |row| row.get(0));
        async move { Ok(read?) }.boxed_local()
    }
}

const CONTACT: &str = "UPDATE stock SET fence = ?2 WHERE item = ?1 AND fence <= ?2 RETURNING n";
const WRITE: &str = "UPDATE stock SET n = ?3, fence = ?2 WHERE item = ?1 AND fence <= ?2";
