//! The tables: in which schema they are, and how they come to be there.
//!
//! Who shares locks must not depend on the `search_path` of a role: every statement names its
//! tables in full. In the text of a statement, `@.` stands for the schema.

use std::sync::Arc;

use tokio_postgres::types::Type;

use super::fault;
use super::lanes::Lanes;
use super::lease::get;
use super::link::{LOCAL, Link, Sql, values};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;

/// The statements that make everything tenure needs in a PostgreSQL database, for all three modes,
/// in the schema `public`.
///
/// They are run when a client connects and may create tables; `tenure schema postgres` prints them
/// for those who may not. They can be run again without harm.
pub const SCHEMA: &str = include_str!("schema.sql");

/// The schema that has the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schema {
    name: String,
    /// Whether the URL names it.
    chosen: bool,
}

impl Schema {
    /// Takes the option `schema`: `public` unless it is given, so that everybody who uses the same
    /// database excludes everybody else.
    pub(super) fn take(options: &mut Options) -> Result<Schema> {
        let Some(name) = options.take("schema") else {
            return Ok(Schema { name: "public".to_owned(), chosen: false });
        };
        let odd = |c: char| c.is_control() || matches!(c, '"' | '\'' | '\\');
        if name.is_empty() || name.len() > MOST_BYTES || name.contains(odd) {
            let message = format!(
                "option `schema` is `{}`; it is a name of 1 to {MOST_BYTES} bytes without quotes",
                name.escape_debug()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(Schema { name, chosen: true })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_chosen(&self) -> bool {
        self.chosen
    }

    /// A statement in which the tables are named in full. The name is quoted: it is exactly what
    /// the catalog has, also inside of `nextval('…')`.
    pub(super) fn qualify(&self, text: &str) -> String {
        text.replace("@.", &format!("\"{}\".", self.name))
    }

    /// The statements that make the tables here.
    fn definition(&self) -> String {
        SCHEMA.replace("public.", &format!("\"{}\".", self.name))
    }
}

/// Makes the tables if they are not there.
pub(super) async fn provide(lanes: &Arc<Lanes>) -> Result<()> {
    let (link, schema) = (lanes.pick().await?, &lanes.settings.schema);
    let seen = look(&link, schema).await?;
    if let Some(other) = seen.elsewhere.filter(|name| !schema.chosen && *name != schema.name) {
        return Err(elsewhere(&other));
    }
    if seen.is_there {
        return Ok(());
    }
    let make = match seen.has_schema {
        true => String::new(),
        false => format!("CREATE SCHEMA IF NOT EXISTS \"{}\"; ", schema.name),
    };
    // One at a time: `IF NOT EXISTS` alone fails when two come at the same moment. A lock of the
    // transaction is no trouble behind a pooler.
    let text = format!(
        "BEGIN; {LOCAL}SELECT pg_advisory_xact_lock({ALONE}); {make}{} COMMIT",
        schema.definition()
    );
    let made = link.batch(text).await;
    if made.is_err() {
        // Leaves the failed transaction; the connection is ours alone only in name.
        link.batch("ROLLBACK".to_owned()).await?;
        if look(&link, schema).await?.is_there {
            return Ok(());
        }
    }
    made.map(drop).map_err(|error| refused(lanes, error))
}

fn refused(lanes: &Lanes, error: Error) -> Error {
    if error.kind() != ErrorKind::Denied {
        return error;
    }
    let (user, schema) = (&lanes.settings.user, lanes.settings.schema.name());
    let message = format!(
        "the tables of tenure are missing, and `{user}` may not create them in the schema \
         `{schema}`; let one who may run `tenure schema postgres | psql`"
    );
    Error::new(ErrorKind::Denied, message).with_source(error)
}

/// Earlier clients of this role found their tables by its `search_path`. Beside them, in another
/// schema, this one would exclude nobody.
fn elsewhere(name: &str) -> Error {
    let message = format!(
        "the tables of tenure that this role finds are in the schema `{name}`; say \
         `schema={name}` to share locks with whoever uses them, or `schema=public` not to"
    );
    Error::new(ErrorKind::Invalid, message)
}

/// What there is before anything is made.
struct Seen {
    is_there: bool,
    has_schema: bool,
    /// Where the role's `search_path` finds a table of that name.
    elsewhere: Option<String>,
}

async fn look(link: &Arc<Link>, schema: &Schema) -> Result<Seen> {
    let rows = link.ask(&LOOK, values![schema.name.clone()]).await?;
    let row = rows.first().ok_or_else(|| fault::odd("its tables"))?;
    Ok(Seen { is_there: get(row, 0)?, has_schema: get(row, 1)?, elsewhere: get(row, 2)? })
}

/// $1 the schema's name.
static LOOK: Sql = Sql {
    text: "SELECT to_regclass('@.tenure_token') IS NOT NULL
    AND to_regclass('@.tenure_lease') IS NOT NULL AND to_regclass('@.tenure_board') IS NOT NULL
    AND to_regclass('@.tenure_row') IS NOT NULL,
  EXISTS (SELECT 1 FROM pg_namespace WHERE nspname::text = $1),
  (SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
   WHERE c.oid = to_regclass('tenure_lease'))",
    types: &[Type::TEXT],
};

/// The number under which those who make the tables exclude each other: `tenure` in ASCII.
const ALONE: u64 = 0x7465_6e75_7265;
/// PostgreSQL cuts longer names off.
const MOST_BYTES: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(url: &str) -> Result<Schema> {
        Schema::take(&mut Options::parse(url)?)
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
        let made = other.definition();
        assert!(made.contains(&format!("EXISTS \"{name}\".tenure_lease")), "{made}");
        let named = SCHEMA.lines().filter(|line| !line.starts_with("--"));
        let bare =
            named.filter(|line| line.contains("tenure_") && !line.contains("public.tenure_"));
        assert_eq!(bare.count(), 0);
    }

    #[test]
    fn a_name_cannot_leave_its_quotes() {
        assert_eq!(schema("postgres://").unwrap().name(), "public");
        let long = format!("postgres://?schema={}", "x".repeat(64));
        for url in
            ["postgres://?schema=", "postgres://?schema=a%22b", "postgres://?schema=a%27", &long]
        {
            assert_eq!(schema(url).unwrap_err().kind(), ErrorKind::Invalid, "{url}");
        }
    }
}
