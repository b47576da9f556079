//! The example for sqlx in `docs/fencing.md`, word for word, in a transaction of its own.

use anyhow::{Context, Result, ensure};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
use tenure::FencingToken;
use tenure::fence::Refused;
use tenure::fence::sql::{self, Dialect, Table};

use crate::{cases, token, unique};

/// Tokens in the order in which they come: the third is stale, the others are admitted.
const ORDER: [u64; 4] = [7, 8, 7, 8];

cases! {
    sqlx_admits_refuses_and_rolls_back_in_postgres on &["postgres"];
    sqlx_admits_refuses_and_rolls_back_in_mysql on &["mysql"];
}

/// Sells one under the token.
async fn sell_in_postgres(
    db: &mut PgConnection,
    name: &str,
    lease: FencingToken,
) -> Result<(), Refused<sqlx::Error>> {
    let mut tx = db.begin().await.map_err(Refused::Store)?;
    let table = Table::new(Dialect::Postgres);
    sql::admit(&table, name, lease, async |statement, resource, token| {
        let query = sqlx::query_scalar(AssertSqlSafe(statement));
        query.bind(resource).bind(token).fetch_one(&mut *tx).await
    })
    .await?;
    let sell = sqlx::query("UPDATE register SET n = n - 1 WHERE name = $1").bind(name);
    sell.execute(&mut *tx).await.map_err(Refused::Store)?;
    tx.commit().await.map_err(Refused::Store)
}

async fn sell_in_mysql(
    db: &mut MySqlConnection,
    name: &str,
    lease: FencingToken,
) -> Result<(), Refused<sqlx::Error>> {
    let mut tx = db.begin().await.map_err(Refused::Store)?;
    let table = Table::new(Dialect::MySql);
    sql::admit(&table, name, lease, async |statement, resource, token| {
        let query = sqlx::query(AssertSqlSafe(statement));
        let done = query.bind(resource).bind(token).execute(&mut *tx).await?;
        Ok(done.last_insert_id() as i64)
    })
    .await?;
    let sell = sqlx::query("UPDATE register SET n = n - 1 WHERE name = ?").bind(name);
    sell.execute(&mut *tx).await.map_err(Refused::Store)?;
    tx.commit().await.map_err(Refused::Store)
}

async fn sqlx_admits_refuses_and_rolls_back_in_postgres(url: String) -> Result<()> {
    let name = unique("sqlx");
    let mut db = PgConnection::connect(&url).await?;
    sqlx::query("INSERT INTO register VALUES ($1, 10)").bind(&name).execute(&mut db).await?;
    let mut outcomes = Vec::new();
    for number in ORDER {
        outcomes.push(sell_in_postgres(&mut db, &name, token(number)).await);
    }
    expect(outcomes)?;
    let left = sqlx::query_scalar("SELECT n FROM register WHERE name = $1").bind(&name);
    ensure!(left.fetch_one(&mut db).await.map(|left: i64| left == 7)?);
    let sweep = Table::new(Dialect::Postgres).sweep();
    let swept = sqlx::query(AssertSqlSafe(sweep)).bind(9999_i64).execute(&mut db).await?;
    ensure!(swept.rows_affected() == 0);
    Ok(())
}

async fn sqlx_admits_refuses_and_rolls_back_in_mysql(url: String) -> Result<()> {
    let name = unique("sqlx");
    let mut db = MySqlConnection::connect(&url).await?;
    sqlx::query("INSERT INTO register VALUES (?, 10)").bind(&name).execute(&mut db).await?;
    let mut outcomes = Vec::new();
    for number in ORDER {
        outcomes.push(sell_in_mysql(&mut db, &name, token(number)).await);
    }
    expect(outcomes)?;
    let left = sqlx::query_scalar("SELECT n FROM register WHERE name = ?").bind(&name);
    ensure!(left.fetch_one(&mut db).await.map(|left: i64| left == 7)?);
    let sweep = Table::new(Dialect::MySql).sweep();
    let swept = sqlx::query(AssertSqlSafe(sweep)).bind(9999_i64).execute(&mut db).await?;
    ensure!(swept.rows_affected() == 0);
    Ok(())
}

fn expect(outcomes: Vec<Result<(), Refused<sqlx::Error>>>) -> Result<()> {
    for (number, outcome) in outcomes.into_iter().enumerate() {
        if number != 2 {
            outcome.with_context(|| format!("token number {number}"))?;
            continue;
        }
        let error = outcome.err().context("7 after 8")?;
        let stale = error.stale().with_context(|| error.to_string())?;
        ensure!((stale.token(), stale.seen()) == (token(7), token(8)), "{stale}");
    }
    Ok(())
}
