//! The tables: in which schema they are, and how they are created.
//!
//! Which clients share locks must not depend on the `search_path` of a role, so that every
//! statement names its tables in full. In the text of a statement, `@.` stands for the schema.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_postgres::types::Type;

use super::columns::get;
use crate::backends::postgres::connection::Connection;
use crate::backends::postgres::connection::pool::Pool;
use crate::backends::postgres::connection::setup::TRANSACTION_SETUP;
use crate::backends::postgres::connection::statement::{Sql, values};
use crate::backends::postgres::error;
use crate::error::{Error, ErrorKind, Result};
use crate::support::url::Url;

/// $1 the name of the schema.
static READ_EXISTING: Sql = Sql {
    text: "SELECT to_regclass('@.tenure_token') IS NOT NULL
    AND to_regclass('@.tenure_lease') IS NOT NULL AND to_regclass('@.tenure_board') IS NOT NULL
    AND to_regclass('@.tenure_row') IS NOT NULL AS tables,
  EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('@.tenure_lease')
    AND attname = 'holders' AND NOT attisdropped)
    AND EXISTS (SELECT 1 FROM pg_sequence WHERE seqrelid = to_regclass('@.tenure_token')
    AND seqincrement >= 1024) AS is_current,
  EXISTS (SELECT 1 FROM pg_namespace WHERE nspname::text = $1) AS schema,
  (SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
   WHERE c.oid = to_regclass('tenure_lease')) AS found_by_search_path",
    types: &[Type::TEXT],
};

/// The statements that make everything tenure needs in a PostgreSQL database, for all three modes,
/// in the schema `public`.
///
/// A client executes them when it connects, if it may create tables; otherwise
/// `tenure schema postgres` prints them for an operator who may. They are idempotent, and upgrade
/// the tables of an earlier version.
pub const SCHEMA: &str = include_str!("schema.sql");

/// What [`SCHEMA`] has and tables of earlier versions do not. In this order: statements that
/// acquire lock the table first, then the sequence.
const UPGRADE: [&str; 3] = [
    "ALTER TABLE public.tenure_lease ADD COLUMN IF NOT EXISTS holders jsonb NOT NULL DEFAULT '[]';",
    "ALTER TABLE public.tenure_lease ALTER COLUMN holders SET STORAGE MAIN;",
    "ALTER SEQUENCE public.tenure_token INCREMENT BY 1024;",
];
/// While an upgrade waits for the table, every other statement waits behind it. So it gives up
/// soon, and is tried again a few times.
const UPGRADE_SETUP: &str = "SET LOCAL lock_timeout = '100ms'; ";
const UPGRADE_ATTEMPTS: u32 = 3;
const UPGRADE_PAUSE: Duration = Duration::from_millis(50);

/// The number of the advisory lock under which clients create the tables: `tenure` in ASCII.
const CREATION_LOCK: u64 = 0x7465_6e75_7265;
/// PostgreSQL truncates longer names.
const MAX_NAME_BYTES: usize = 63;

/// The schema that has the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schema {
    name: String,
    /// Whether the URL names it.
    chosen: bool,
}

impl Schema {
    /// Takes the option `schema`. The default is `public`, so that all clients of a database
    /// exclude each other.
    pub(crate) fn from_url(url: &mut Url) -> Result<Schema> {
        let Some(name) = url.take("schema") else {
            return Ok(Schema { name: "public".to_owned(), chosen: false });
        };
        let forbidden = |c: char| c.is_control() || matches!(c, '"' | '\'' | '\\');
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(forbidden) {
            let message = format!(
                "option `schema` is `{}`; it is a name of 1 to {MAX_NAME_BYTES} bytes without \
                 quotes",
                name.escape_debug()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(Schema { name, chosen: true })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is_chosen(&self) -> bool {
        self.chosen
    }

    /// The statement with its tables named in full. The name is quoted: it is exactly what the
    /// catalog has, also inside of `nextval('…')`.
    pub(crate) fn qualify(&self, text: &str) -> String {
        text.replace("@.", &format!("\"{}\".", self.name))
    }

    /// Statements about the tables in `public`, for the tables in this schema.
    fn definition(&self, text: &str) -> String {
        text.replace("public.", &format!("\"{}\".", self.name))
    }
}

/// Creates the tables if they are missing, and upgrades those of an earlier version.
pub(crate) async fn prepare(pool: &Arc<Pool>) -> Result<()> {
    let connection = pool.connection().await?;
    let schema = &pool.config.schema;
    let existing = read_existing(&connection, schema).await?;
    let elsewhere = existing.found_by_search_path.filter(|name| *name != schema.name);
    if let Some(other) = elsewhere.filter(|_| !schema.chosen) {
        return Err(found_elsewhere(&other));
    }
    if !existing.tables {
        create(pool, &connection, existing.schema).await?;
    } else if !existing.is_current {
        upgrade(pool, &connection).await?;
    }
    let is_current = read_existing(&connection, schema).await?.is_current;
    pool.has_modes.store(is_current, Ordering::Relaxed);
    Ok(())
}

/// Creates the tables.
async fn create(pool: &Pool, connection: &Arc<Connection>, has_schema: bool) -> Result<()> {
    let schema = &pool.config.schema;
    let create_schema = if has_schema {
        String::new()
    } else {
        format!("CREATE SCHEMA IF NOT EXISTS \"{}\"; ", schema.name)
    };
    // One client at a time: `IF NOT EXISTS` alone fails when two create at the same moment. The
    // lock ends with the transaction, so that it also works behind a pooler.
    let text = format!(
        "BEGIN; {TRANSACTION_SETUP}SELECT pg_advisory_xact_lock({CREATION_LOCK}); \
         {create_schema}{} COMMIT",
        schema.definition(SCHEMA)
    );
    let created = connection.batch(text).await;
    if created.is_err() {
        // Ends the failed transaction: later statements use the same connection.
        connection.batch("ROLLBACK".to_owned()).await?;
        if read_existing(connection, schema).await?.tables {
            return Ok(());
        }
    }
    created.map(drop).map_err(|error| not_created(pool, error))
}

/// Adds what tables of an earlier version lack, if the role may. Otherwise this client goes on with
/// exclusive locks only, whose statements need nothing of it: an upgrade of the program must not
/// take their locks away. Tables and sequence change in one transaction. Clients that run already
/// see no difference: what they hold and draw stays, and the next token is 1024 further.
async fn upgrade(pool: &Pool, connection: &Arc<Connection>) -> Result<()> {
    let text = format!(
        "BEGIN; {TRANSACTION_SETUP}SELECT pg_advisory_xact_lock({CREATION_LOCK}); \
         {UPGRADE_SETUP}{} COMMIT",
        pool.config.schema.definition(&UPGRADE.join(" "))
    );
    for _ in 0..UPGRADE_ATTEMPTS {
        let Err(refused) = connection.batch(text.clone()).await else { return Ok(()) };
        // Ends the failed transaction: later statements use the same connection.
        connection.batch("ROLLBACK".to_owned()).await?;
        if refused.kind() == ErrorKind::Denied {
            return Ok(());
        }
        tokio::time::sleep(UPGRADE_PAUSE).await;
    }
    Ok(())
}

fn not_created(pool: &Pool, error: Error) -> Error {
    if error.kind() != ErrorKind::Denied {
        return error;
    }
    let user = &pool.config.user;
    let schema = pool.config.schema.name();
    let message = format!(
        "the tables of tenure are missing, and `{user}` may not create them in the schema \
         `{schema}`; let a role that may create them run `tenure schema postgres | psql`"
    );
    Error::new(ErrorKind::Denied, message).with_source(error)
}

/// Earlier versions of tenure found their tables by the role's `search_path`. Locks in another
/// schema would not exclude theirs.
fn found_elsewhere(name: &str) -> Error {
    let message = format!(
        "the tables of tenure that this role finds are in the schema `{name}`; say \
         `schema={name}` to share locks with the clients that use them, or `schema=public` not to"
    );
    Error::new(ErrorKind::Invalid, message)
}

/// What is there before anything is created.
struct ExistingTables {
    tables: bool,
    /// Whether they have what [`UPGRADE`] adds.
    is_current: bool,
    schema: bool,
    /// The schema in which the role's `search_path` finds a table `tenure_lease`.
    found_by_search_path: Option<String>,
}

async fn read_existing(connection: &Arc<Connection>, schema: &Schema) -> Result<ExistingTables> {
    let rows = connection.query(&READ_EXISTING, values![schema.name.clone()]).await?;
    let row = rows.first().ok_or_else(|| error::unexpected("no row about the tables"))?;
    Ok(ExistingTables {
        tables: get(row, "tables")?,
        is_current: get(row, "is_current")?,
        schema: get(row, "schema")?,
        found_by_search_path: get(row, "found_by_search_path")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(url: &str) -> Result<Schema> {
        Schema::from_url(&mut Url::parse(url)?)
    }

    #[test]
    fn every_table_is_named_in_full() {
        let other = schema("postgres://?schema=My+Locks").unwrap();
        let qualified = other.qualify("SELECT nextval('@.tenure_token') FROM @.tenure_lease");
        let name = other.name();
        assert_eq!(
            qualified,
            format!("SELECT nextval('\"{name}\".tenure_token') FROM \"{name}\".tenure_lease")
        );
        let definition = other.definition(SCHEMA);
        assert!(definition.contains(&format!("EXISTS \"{name}\".tenure_lease")), "{definition}");
        let named = SCHEMA.lines().filter(|line| !line.starts_with("--"));
        let bare =
            named.filter(|line| line.contains("tenure_") && !line.contains("public.tenure_"));
        assert_eq!(bare.count(), 0);
    }

    #[test]
    fn an_upgrade_makes_what_new_tables_have() {
        for statement in UPGRADE {
            assert!(SCHEMA.contains(statement), "{statement}");
        }
    }

    #[test]
    fn a_name_with_quotes_is_refused() {
        assert_eq!(schema("postgres://").unwrap().name(), "public");
        let long = format!("postgres://?schema={}", "x".repeat(64));
        for url in
            ["postgres://?schema=", "postgres://?schema=a%22b", "postgres://?schema=a%27", &long]
        {
            assert_eq!(schema(url).unwrap_err().kind(), ErrorKind::Invalid, "{url}");
        }
    }
}
