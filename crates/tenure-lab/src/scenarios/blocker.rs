//! A foreign transaction: it locks the row of one lock, for as long as it is open.

use anyhow::{Result, bail, ensure};
use tenure_servers::wire::mysql::Mysql;
use tenure_servers::wire::postgres::Postgres;

use crate::stage::Stage;

/// The connection of a foreign client, which knows nothing of tenure.
pub(super) struct Blocker {
    connection: Connection,
    /// The table of the lock under test, and its column of keys.
    table: &'static str,
}

enum Connection {
    Postgres(Postgres),
    Mysql(Mysql),
}

impl Blocker {
    pub(super) fn open(stage: &Stage<'_>) -> Result<Blocker> {
        let port = stage.rig.cluster()?.node().port();
        let (connection, table) = match stage.lock.name {
            "postgres" => (Connection::Postgres(Postgres::connect(port)?), "tenure_lease"),
            "mysql" => (Connection::Mysql(Mysql::connect(port)?), "tenure_lease"),
            "mysql-session" => (Connection::Mysql(Mysql::connect(port)?), "tenure_session"),
            other => bail!("{other} keeps no rows with leases"),
        };
        Ok(Blocker { connection, table })
    }

    /// Begins a transaction and locks the row of this lock.
    pub(super) fn block(&mut self, key: &str) -> Result<()> {
        self.query("BEGIN")?;
        let table = self.table;
        let found = match self.connection {
            Connection::Postgres(_) => {
                // A new version of the row: whoever waited for the old one begins anew, in any
                // order. After a mere lock, they would go on in the order in which they came.
                let key = format!("convert_to('{key}', 'UTF8')");
                let sql = format!("UPDATE {table} SET note = note WHERE key = {key} RETURNING 1");
                self.query(&sql)?
            }
            Connection::Mysql(_) => {
                self.query(&format!("SELECT 1 FROM {table} WHERE k = '{key}' FOR UPDATE"))?
            }
        };
        ensure!(!found.is_empty(), "the lock {key} has no row in {table}");
        Ok(())
    }

    /// Ends the transaction.
    pub(super) fn unblock(&mut self) -> Result<()> {
        self.query("COMMIT").map(drop)
    }

    /// How many statements of others wait for a row, or for who waits for one.
    pub(super) fn waiting(&mut self) -> Result<usize> {
        let sql = match self.connection {
            Connection::Postgres(_) => {
                // Unlike the view of activities, it is not frozen within a transaction.
                "SELECT count(*) FROM pg_locks WHERE NOT granted"
            }
            Connection::Mysql(_) => {
                "SELECT count(*) FROM information_schema.innodb_trx \
                 WHERE trx_state = 'LOCK WAIT'"
            }
        };
        Ok(self.query(sql)?.first().map_or(Ok(0), |count| count.parse())?)
    }

    fn query(&mut self, sql: &str) -> Result<Vec<String>> {
        Ok(match &mut self.connection {
            Connection::Postgres(connection) => connection.query(sql)?,
            Connection::Mysql(connection) => connection.query(sql)?,
        })
    }
}
