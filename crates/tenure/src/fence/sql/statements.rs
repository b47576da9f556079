//! The table of fences, and its statements.

use super::Dialect;

/// The schema of PostgreSQL that has the table by default.
const PUBLIC: &str = "public";
/// The column of SQLite, which has no types of its own.
const SQLITE_SHARED: &str = "shared INTEGER NOT NULL DEFAULT 0 \
                             CHECK (typeof(shared) = 'integer' AND shared >= 0)";

/// The table of fences: `public.tenure_fence` in PostgreSQL, `main.tenure_fence` in SQLite, and in
/// MySQL that of the connection's own database. It is named with its schema in every statement:
/// found by `search_path`, two roles could have two tables, and two fences for one resource.
///
/// # Examples
///
/// ```
/// use tenure::fence::sql::{Dialect, Table};
///
/// let table = Table::new(Dialect::Postgres).schema("shop");
/// assert!(table.sweep().starts_with(r#"DELETE FROM "shop".tenure_fence WHERE touched <"#));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Table {
    dialect: Dialect,
    schema: Option<String>,
}

impl Table {
    /// The table in the default schema.
    pub const fn new(dialect: Dialect) -> Table {
        Table { dialect, schema: None }
    }

    /// The table in this schema; in MySQL, in this database. The schema has to exist already.
    #[must_use]
    pub fn schema(mut self, name: impl Into<String>) -> Table {
        self.schema = Some(name.into());
        self
    }

    /// The statement that creates the table. It belongs among the migrations.
    ///
    /// In PostgreSQL it fails if `search_path` shows a table of that name in another schema: it was
    /// created by an older version or by hand, and what it fences must not be forgotten. Move it,
    /// with `ALTER TABLE … SET SCHEMA`, or drop it.
    ///
    /// A table of before readers had tokens lacks the column `shared`, and admissions fail there
    /// for that column. In PostgreSQL this statement adds it; in MySQL and SQLite
    /// [`add_shared`](Table::add_shared) does. `create` of the client modules does it by itself.
    pub fn create(&self) -> String {
        let name = self.name();
        match self.dialect {
            // Binary, else `a` and `A` would share a fence.
            Dialect::MySql => format!(
                "CREATE TABLE IF NOT EXISTS {name} (resource VARBINARY(255) PRIMARY KEY, \
                 token BIGINT NOT NULL CHECK (token > 0), touched DATE NOT NULL, \
                 shared BIGINT NOT NULL DEFAULT 0 CHECK (shared >= 0)) ENGINE = InnoDB"
            ),
            Dialect::Postgres => self.create_postgres(&name),
            Dialect::Sqlite => format!(
                "CREATE TABLE IF NOT EXISTS {name} (resource TEXT PRIMARY KEY NOT NULL, \
                 token INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token > 0), \
                 touched TEXT NOT NULL, {SQLITE_SHARED}) WITHOUT ROWID"
            ),
        }
    }

    /// A single statement, so that clients that prepare statements can execute it too.
    fn create_postgres(&self, name: &str) -> String {
        let schema = self.schema.as_deref().unwrap_or(PUBLIC).replace('\'', "''");
        let literal = name.replace('\'', "''");
        // Half-empty pages: a raised token then stays on its page and needs no new index entry.
        format!(
            "DO $tenure$
             DECLARE other name;
             BEGIN
                SELECT n.nspname INTO other FROM pg_catalog.pg_class c
                JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                WHERE c.relname = 'tenure_fence' AND n.nspname <> '{schema}'
                AND n.nspname = ANY (current_schemas(false)) LIMIT 1;
                IF FOUND THEN
                    RAISE EXCEPTION 'there is a table tenure_fence in the schema % too', other
                    USING HINT = 'Move it with ALTER TABLE ... SET SCHEMA, or drop it.';
                END IF;
                CREATE TABLE IF NOT EXISTS {name} (resource text PRIMARY KEY,
                token bigint NOT NULL CHECK (token > 0), touched date NOT NULL,
                shared bigint NOT NULL DEFAULT 0 CHECK (shared >= 0))
                WITH (fillfactor = 50);
                -- Only where it is missing: else a role that does not own the table is refused.
                PERFORM 1 FROM pg_catalog.pg_attribute WHERE attrelid = '{literal}'::regclass
                AND attname = 'shared' AND NOT attisdropped;
                IF NOT FOUND THEN
                    ALTER TABLE {name}
                    ADD COLUMN shared bigint NOT NULL DEFAULT 0 CHECK (shared >= 0);
                END IF;
             END $tenure$"
        )
    }

    /// The statement that adds the column `shared` to a table of before readers had tokens. It
    /// fails where the column is there. Fences stay as they are.
    ///
    /// # Examples
    ///
    /// ```
    /// use tenure::fence::sql::{Dialect, Table};
    ///
    /// let statement = Table::new(Dialect::MySql).add_shared();
    /// assert!(statement.starts_with("ALTER TABLE tenure_fence ADD COLUMN shared BIGINT"));
    /// ```
    pub fn add_shared(&self) -> String {
        let column = match self.dialect {
            Dialect::Sqlite => SQLITE_SHARED,
            _ => "shared BIGINT NOT NULL DEFAULT 0 CHECK (shared >= 0)",
        };
        format!("ALTER TABLE {} ADD COLUMN {column}", self.name())
    }

    /// A query for the number of columns that are called `shared`: 0 or 1. PostgreSQL needs none.
    #[cfg(any(
        feature = "fence-mysql-async",
        feature = "fence-rusqlite",
        feature = "fence-sqlx-mysql"
    ))]
    pub(in crate::fence) fn count_shared(&self) -> String {
        let quoted = |schema: &String| format!("'{}'", schema.replace('\'', "''"));
        let schema = self.schema.as_ref().map(quoted);
        if self.dialect == Dialect::Sqlite {
            let schema = schema.unwrap_or_else(|| "'main'".to_owned());
            return format!(
                "SELECT count(*) FROM pragma_table_info('tenure_fence', {schema}) \
                 WHERE name = 'shared'"
            );
        }
        let schema = schema.unwrap_or_else(|| "DATABASE()".to_owned());
        format!(
            "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = {schema} \
             AND table_name = 'tenure_fence' AND column_name = 'shared'"
        )
    }

    /// The statement of [`admit`](super::admit), for clients that cannot be called from a closure.
    /// Its parameters are the resource and the token; pass its result to [`judge`](super::judge).
    /// It also records the day, for [`sweep`](Table::sweep).
    pub fn statement(&self) -> String {
        let name = self.name();
        match self.dialect {
            // There is no RETURNING here. LAST_INSERT_ID(x) returns x to the client with the
            // response, also when nothing changed. It is never 0.
            Dialect::MySql => format!(
                "INSERT INTO {name} (resource, token, touched) \
                 VALUES (?, LAST_INSERT_ID(?), UTC_DATE()) ON DUPLICATE KEY UPDATE \
                 token = IF(LAST_INSERT_ID(IF(shared > GREATEST(token, VALUES(token)), \
                 -shared, GREATEST(token, VALUES(token)))) = 0, token, \
                 IF(shared > VALUES(token), token, GREATEST(token, VALUES(token)))), \
                 touched = VALUES(touched)"
            ),
            // Also a refused token updates the row, to itself: without an update no row comes back.
            Dialect::Postgres => format!(
                "INSERT INTO {name} AS f (resource, token, touched) \
                 VALUES ($1, $2, (now() AT TIME ZONE 'UTC')::date) \
                 ON CONFLICT (resource) DO UPDATE SET \
                 token = CASE WHEN f.shared > excluded.token THEN f.token \
                 ELSE greatest(f.token, excluded.token) END, touched = excluded.touched \
                 RETURNING CASE WHEN shared > token THEN -shared ELSE token END"
            ),
            Dialect::Sqlite => format!(
                "INSERT INTO {name} (resource, token, touched) \
                 VALUES (?1, ?2, date('now')) ON CONFLICT (resource) DO UPDATE SET \
                 token = CASE WHEN shared > excluded.token THEN token \
                 ELSE max(token, excluded.token) END, touched = excluded.touched \
                 RETURNING CASE WHEN shared > token THEN -shared ELSE token END"
            ),
        }
    }

    /// The statement of [`admit_shared`](super::admit_shared), with the same parameters as
    /// [`statement`](Table::statement).
    ///
    /// # Examples
    ///
    /// ```
    /// use tenure::fence::sql::{Dialect, Table};
    ///
    /// let statement = Table::new(Dialect::Sqlite).statement_shared();
    /// assert!(statement.contains("(resource, token, shared, touched)"));
    /// ```
    pub fn statement_shared(&self) -> String {
        let name = self.name();
        // A writer with the token 1, the lowest there is, refuses none: no writer has been here.
        match self.dialect {
            Dialect::MySql => format!(
                "INSERT INTO {name} (resource, token, shared, touched) \
                 VALUES (?, 1, LAST_INSERT_ID(?), UTC_DATE()) ON DUPLICATE KEY UPDATE \
                 shared = IF(LAST_INSERT_ID(GREATEST(token, VALUES(shared))) = 0, shared, \
                 IF(token > VALUES(shared), shared, GREATEST(shared, VALUES(shared)))), \
                 touched = VALUES(touched)"
            ),
            Dialect::Postgres => format!(
                "INSERT INTO {name} AS f (resource, token, shared, touched) \
                 VALUES ($1, 1, $2, (now() AT TIME ZONE 'UTC')::date) \
                 ON CONFLICT (resource) DO UPDATE SET \
                 shared = CASE WHEN f.token > excluded.shared THEN f.shared \
                 ELSE greatest(f.shared, excluded.shared) END, touched = excluded.touched \
                 RETURNING greatest(token, $2)"
            ),
            Dialect::Sqlite => format!(
                "INSERT INTO {name} (resource, token, shared, touched) \
                 VALUES (?1, 1, ?2, date('now')) ON CONFLICT (resource) DO UPDATE SET \
                 shared = CASE WHEN token > excluded.shared THEN shared \
                 ELSE max(shared, excluded.shared) END, touched = excluded.touched \
                 RETURNING max(token, ?2)"
            ),
        }
    }

    /// The statement that deletes the fences that no client used for so many whole days, by the
    /// database's clock in UTC. The number of days is its one parameter, a 64-bit integer; below 0
    /// counts as 0. It reads the whole table, in a transaction of its own: run it at night.
    ///
    /// It is safe if **no holder that lost its lock so many days ago can still write**. A row that
    /// is deleted admits any token, as at first use; the next admission creates it again, and
    /// closes the fence for all before. So the days are to be longer than any pause that is to be
    /// survived: a suspended laptop, a virtual machine that is restored, a job that hangs. 30 is a
    /// good number. A holder that is in the middle of its work loses nothing: its next admission
    /// creates the row again.
    pub fn sweep(&self) -> String {
        let name = self.name();
        let old = match self.dialect {
            Dialect::MySql => "UTC_DATE() - INTERVAL GREATEST(?, 0) DAY",
            Dialect::Postgres => {
                "(now() AT TIME ZONE 'UTC')::date - greatest($1::bigint, 0)::integer"
            }
            Dialect::Sqlite => "date('now', '-' || max(?1, 0) || ' days')",
        };
        format!("DELETE FROM {name} WHERE touched < {old}")
    }

    /// The name of the table, as it is written in a statement.
    fn name(&self) -> String {
        match (&self.schema, self.dialect) {
            (Some(schema), Dialect::MySql) => {
                format!("`{}`.tenure_fence", schema.replace('`', "``"))
            }
            (Some(schema), _) => format!("\"{}\".tenure_fence", schema.replace('"', "\"\"")),
            // A database of MySQL is a schema, and there is no path through several.
            (None, Dialect::MySql) => "tenure_fence".to_owned(),
            (None, Dialect::Postgres) => format!("{PUBLIC}.tenure_fence"),
            (None, Dialect::Sqlite) => "main.tenure_fence".to_owned(),
        }
    }
}
