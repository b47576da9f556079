//! What only sqlx shows: a fence without the module for it, as `docs/fencing.md` has it for any
//! other client, and contacts that would not last.

use anyhow::{Context, Result, ensure};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
use tenure::FencingToken;
use tenure::fence::sql::{self, Dialect, Table};
use tenure::fence::{self, Refused};

use crate::registers::sqlx_url;
use crate::{cases, token, unique};

/// Tokens in the order in which they come: the third is stale, the others are admitted.
const ORDER: [u64; 4] = [7, 8, 7, 8];

cases! {
    any_other_client_admits_and_refuses_by_a_closure on &["sqlx-postgres"];
    a_first_contact_in_a_transaction_is_refused_in_postgres on &["sqlx-postgres"];
    a_first_contact_in_a_transaction_is_refused_in_mysql on &["sqlx-mysql"];
}

/// Sells one under the token.
async fn sell(
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

async fn any_other_client_admits_and_refuses_by_a_closure(url: String) -> Result<()> {
    let name = unique("sqlx");
    let mut db = PgConnection::connect(sqlx_url(&url)).await?;
    sqlx::query("INSERT INTO register VALUES ($1, 10)").bind(&name).execute(&mut db).await?;
    for (number, order) in ORDER.into_iter().enumerate() {
        let outcome = sell(&mut db, &name, token(order)).await;
        if number != 2 {
            outcome.with_context(|| format!("token number {number}"))?;
            continue;
        }
        let error = outcome.err().context("7 after 8")?;
        let stale = error.stale().with_context(|| error.to_string())?;
        ensure!((stale.token(), stale.seen()) == (token(7), token(8)), "{stale}");
    }
    let left = sqlx::query_scalar("SELECT n FROM register WHERE name = $1").bind(&name);
    ensure!(left.fetch_one(&mut db).await.map(|left: i64| left == 7)?);
    Ok(())
}

/// It would be a savepoint, and be rolled back with the transaction around it.
async fn a_first_contact_in_a_transaction_is_refused_in_postgres(url: String) -> Result<()> {
    let name = unique("nested");
    let mut db = PgConnection::connect(sqlx_url(&url)).await?;
    let mut tx = db.begin().await?;
    expect_refusal(fence::sqlx::contact(&mut *tx, &name, token(8)).await)?;
    drop(tx);
    Ok(fence::sqlx::contact(&mut db, &name, token(7)).await?)
}

async fn a_first_contact_in_a_transaction_is_refused_in_mysql(url: String) -> Result<()> {
    let name = unique("nested");
    let mut db = MySqlConnection::connect(sqlx_url(&url)).await?;
    let mut tx = db.begin().await?;
    expect_refusal(fence::sqlx::contact(&mut *tx, &name, token(8)).await)?;
    drop(tx);
    Ok(fence::sqlx::contact(&mut db, &name, token(7)).await?)
}

fn expect_refusal(contact: Result<(), Refused<sqlx::Error>>) -> Result<()> {
    let error = contact.err().context("a contact in a transaction")?.to_string();
    ensure!(error.contains("in a transaction"), "{error}");
    Ok(())
}
