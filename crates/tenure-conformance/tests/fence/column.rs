//! The other form: a `fence` column in the user's own table.

use anyhow::{Result, ensure};
use rusqlite::{Connection, OptionalExtension};
use tenure::FencingToken;
use tenure::fence::sql::{Dialect, Unchanged, admit, unchanged};

use crate::registers::connect_postgres;
use crate::{cases, token, unique};

cases! {
    a_row_with_a_fence_column_is_stale_missing_or_unmatched on &["sqlite"];
    any_client_can_admit_with_a_closure on &["postgres"];
}

async fn a_row_with_a_fence_column_is_stale_missing_or_unmatched(url: String) -> Result<()> {
    let db = Connection::open(url.trim_start_matches("sqlite://"))?;
    db.execute_batch(
        "CREATE TABLE stock (item PRIMARY KEY, n, fence INTEGER NOT NULL DEFAULT 0);
         INSERT INTO stock (item, n) VALUES (42, 1)",
    )?;
    let sell = |item: i64, token: FencingToken| -> rusqlite::Result<Option<Unchanged>> {
        let sql = "UPDATE stock SET n = n - 1, fence = ?2 \
                   WHERE item = ?1 AND fence <= ?2 AND n > 0";
        if db.execute(sql, (item, token.as_i64()))? > 0 {
            return Ok(None);
        }
        let sql = "SELECT fence FROM stock WHERE item = ?1";
        let fence = db.query_row(sql, [item], |row| row.get(0)).optional()?;
        Ok(Some(unchanged(token, fence)))
    };
    ensure!(sell(42, token(8))?.is_none());
    ensure!(sell(42, token(8))? == Some(Unchanged::Unmatched));
    ensure!(sell(43, token(8))? == Some(Unchanged::Missing));
    let Some(Unchanged::Stale(stale)) = sell(42, token(7))? else { anyhow::bail!("7 after 8") };
    ensure!((stale.token(), stale.seen()) == (token(7), token(8)));
    Ok(())
}

async fn any_client_can_admit_with_a_closure(url: String) -> Result<()> {
    let (name, db) = (unique("closure"), connect_postgres(&url).await?);
    let query = async |statement: &'static str, resource: &str, token: i64| {
        db.query_one(statement, &[&resource, &token]).await?.try_get(0)
    };
    admit(Dialect::Postgres, &name, token(8), query).await?;
    admit(Dialect::Postgres, &name, token(8), query).await?;
    let refused = admit(Dialect::Postgres, &name, token(7), query).await.unwrap_err();
    ensure!(refused.to_string() == "token 7 is stale: 8 was here before", "{refused}");
    Ok(())
}
