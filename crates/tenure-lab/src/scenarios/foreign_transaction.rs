//! A transaction of a foreign client, which locks the row of one lock for as long as it is open.

use anyhow::{Result, bail, ensure};
use tenure_servers::wire::mysql::Mysql;
use tenure_servers::wire::postgres::Postgres;

use crate::runner::Runner;

/// The connection of a foreign client, and the table with the rows of the lock under test.
pub(super) struct ForeignTransaction {
    connection: SqlConnection,
    table: &'static str,
}

enum SqlConnection {
    Postgres(Postgres),
    Mysql(Mysql),
}

impl ForeignTransaction {
    pub(super) fn connect(runner: &Runner<'_>) -> Result<ForeignTransaction> {
        let port = runner.setup.cluster()?.node().port();
        let (connection, table) = match runner.lock.name {
            "postgres" => (SqlConnection::Postgres(Postgres::connect(port)?), "tenure_lease"),
            "mysql" => (SqlConnection::Mysql(Mysql::connect(port)?), "tenure_lease"),
            "mysql-session" => (SqlConnection::Mysql(Mysql::connect(port)?), "tenure_session"),
            other => bail!("{other} has no rows with leases"),
        };
        Ok(ForeignTransaction { connection, table })
    }

    /// Begins a transaction and locks the row of this lock.
    pub(super) fn lock_row(&mut self, key: &str) -> Result<()> {
        self.query("BEGIN")?;
        let table = self.table;
        let found = match self.connection {
            SqlConnection::Postgres(_) => {
                // Writes a new version of the row, so that statements that waited for the old one
                // start again, in any order. After SELECT FOR UPDATE they would continue in the
                // order in which they came.
                let key = format!("convert_to('{key}', 'UTF8')");
                let sql = format!("UPDATE {table} SET note = note WHERE key = {key} RETURNING 1");
                self.query(&sql)?
            }
            SqlConnection::Mysql(_) => {
                self.query(&format!("SELECT 1 FROM {table} WHERE k = '{key}' FOR UPDATE"))?
            }
        };
        ensure!(!found.is_empty(), "the lock {key} has no row in {table}");
        Ok(())
    }

    /// Ends the transaction.
    pub(super) fn commit(&mut self) -> Result<()> {
        self.query("COMMIT").map(drop)
    }

    /// Number of statements of other clients that wait for a row, or behind one that waits.
    pub(super) fn waiting(&mut self) -> Result<usize> {
        let sql = match self.connection {
            SqlConnection::Postgres(_) => {
                // Unlike pg_stat_activity, this view is not frozen within a transaction.
                "SELECT count(*) FROM pg_locks WHERE NOT granted"
            }
            SqlConnection::Mysql(_) => {
                "SELECT count(*) FROM information_schema.innodb_trx \
                 WHERE trx_state = 'LOCK WAIT'"
            }
        };
        Ok(self.query(sql)?.first().map_or(Ok(0), |count| count.parse())?)
    }

    fn query(&mut self, sql: &str) -> Result<Vec<String>> {
        Ok(match &mut self.connection {
            SqlConnection::Postgres(connection) => connection.query(sql)?,
            SqlConnection::Mysql(connection) => connection.query(sql)?,
        })
    }
}
