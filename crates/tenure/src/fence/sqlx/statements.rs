//! What a fence executes on a connection of sqlx.

use ::sqlx::{AssertSqlSafe, Error};

use self::private::Statements;
use crate::fence::sql::{self, Dialect};

/// Not to be implemented by others: what a fence executes may change.
pub(super) mod private {
    use super::{Dialect, Error, sql};

    pub trait Statements: Send {
        const DIALECT: Dialect;
        /// Added to the statement of a first contact.
        const DURABLE: &str;

        /// Creates the table, or adds what is missing there.
        fn create(&mut self, table: &sql::Table) -> impl Future<Output = Result<(), Error>> + Send;

        /// Executes a statement of [`sql::Table`] and returns its one number.
        fn highest(
            &mut self,
            statement: String,
            resource: &str,
            token: i64,
        ) -> impl Future<Output = Result<i64, Error>> + Send;

        /// Executes a statement with at most one parameter; returns how many rows it changed.
        fn run(
            &mut self,
            statement: String,
            parameter: Option<i64>,
        ) -> impl Future<Output = Result<u64, Error>> + Send;
    }
}

#[cfg(feature = "fence-sqlx-postgres")]
impl Statements for ::sqlx::PgConnection {
    const DIALECT: Dialect = Dialect::Postgres;
    const DURABLE: &str = sql::POSTGRES_DURABLE;

    async fn create(&mut self, table: &sql::Table) -> Result<(), Error> {
        self.run(table.create(), None).await.map(drop)
    }

    async fn highest(
        &mut self,
        statement: String,
        resource: &str,
        token: i64,
    ) -> Result<i64, Error> {
        let query = ::sqlx::query_scalar(AssertSqlSafe(statement));
        query.bind(resource).bind(token).fetch_one(self).await
    }

    async fn run(&mut self, statement: String, parameter: Option<i64>) -> Result<u64, Error> {
        let mut query = ::sqlx::query(AssertSqlSafe(statement));
        if let Some(parameter) = parameter {
            query = query.bind(parameter);
        }
        Ok(query.execute(self).await?.rows_affected())
    }
}

#[cfg(feature = "fence-sqlx-mysql")]
impl Statements for ::sqlx::MySqlConnection {
    const DIALECT: Dialect = Dialect::MySql;
    const DURABLE: &str = "";

    async fn create(&mut self, table: &sql::Table) -> Result<(), Error> {
        self.run(table.create(), None).await?;
        let columns = ::sqlx::query_scalar(AssertSqlSafe(table.count_shared()));
        let columns: i64 = columns.fetch_one(&mut *self).await?;
        if columns == 0 { self.run(table.add_shared(), None).await.map(drop) } else { Ok(()) }
    }

    async fn highest(
        &mut self,
        statement: String,
        resource: &str,
        token: i64,
    ) -> Result<i64, Error> {
        let query = ::sqlx::query(AssertSqlSafe(statement));
        let done = query.bind(resource).bind(token).execute(self).await?;
        // It has no sign for the number of a reader. What is no token is refused as garbage.
        Ok(done.last_insert_id().cast_signed())
    }

    async fn run(&mut self, statement: String, parameter: Option<i64>) -> Result<u64, Error> {
        let mut query = ::sqlx::query(AssertSqlSafe(statement));
        if let Some(parameter) = parameter {
            query = query.bind(parameter);
        }
        Ok(query.execute(self).await?.rows_affected())
    }
}
