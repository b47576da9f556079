//! Checks of the server for `tenure doctor`: a pooler, timeouts, durability, rights, tables.

use std::sync::Arc;

use tokio_postgres::Row;

use super::config::LockMode;
use super::connection::pool::Pool;
use super::connection::pooler;
use super::connection::statement::Sql;
use super::layout::columns::get;
use super::session::limits::HAS_IDLE_SESSION_TIMEOUT;
use crate::error::Result;
use crate::finding::{Finding, Severity};
use crate::token::TOKENS_PER_GRANT;

static READ_FACTS: Sql = Sql {
    text: "SELECT current_setting('server_version_num')::int4 AS version_number,
  current_setting('server_version') AS version,
  (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit') AS commit_default,
  current_setting('synchronous_commit') AS commit_current,
  current_setting('fsync') AS fsync,
  current_setting('server_encoding') AS encoding,
  current_setting('transaction_isolation') AS isolation,
  (SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_isolation')
    AS isolation_default,
  (SELECT reset_val FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout')
    AS idle_timeout,
  (SELECT reset_val FROM pg_settings WHERE name = 'statement_timeout') AS statement_timeout,
  (SELECT reset_val FROM pg_settings WHERE name = 'lock_timeout') AS lock_timeout,
  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
  current_setting('max_connections')::int4 AS max_connections,
  (SELECT bool_and(has_table_privilege(to_regclass(t), p))
     FROM unnest(ARRAY['@.tenure_lease', '@.tenure_board', '@.tenure_row']) t,
          unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p)
    AND has_sequence_privilege(to_regclass('@.tenure_token'), 'USAGE') AS has_rights,
  EXISTS (SELECT 1 FROM pg_index i JOIN pg_attribute a
    ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = to_regclass('@.tenure_lease') AND i.indisunique AND i.indisvalid
      AND i.indnkeyatts = 1 AND a.attname = 'key') AS has_unique_key,
  (SELECT seqcache FROM pg_sequence WHERE seqrelid = to_regclass('@.tenure_token'))
    AS sequence_cache,
  (SELECT seqincrement FROM pg_sequence WHERE seqrelid = to_regclass('@.tenure_token'))
    AS sequence_step,
  EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('@.tenure_lease')
    AND attname = 'holders' AND NOT attisdropped) AS has_holders,
  current_setting('TimeZone') AS time_zone,
  to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') AS utc_now,
  ARRAY(SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = 'tenure_lease' AND c.relkind IN ('r', 'p')
      AND c.oid IS DISTINCT FROM to_regclass('@.tenure_lease') ORDER BY 1) AS other_schemas",
    types: &[],
};

/// The oldest version that tenure was tried on.
const OLDEST: i32 = 120_000;

pub(super) async fn doctor(pool: &Arc<Pool>) -> Result<Vec<Finding>> {
    let rows = pool.query(&READ_FACTS, vec![]).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let mut findings = vec![version(row)?, durability(row)?, encoding(row)?, isolation(row)?];
    findings.push(timeouts(row, pool.config.mode)?);
    findings.push(connections(pool, row)?);
    findings.push(rights(row)?);
    findings.push(schema(pool, row)?);
    findings.push(index(row)?);
    findings.push(sequence(row)?);
    if pool.config.mode == LockMode::Lease {
        findings.push(modes(pool, row)?);
    }
    findings.push(clock(row)?);
    findings.push(pooler_in_front(pool).await?);
    Ok(findings)
}

fn version(row: &Row) -> Result<Finding> {
    let number: i32 = get(row, "version_number")?;
    let text: String = get(row, "version")?;
    if number < OLDEST {
        let detail = format!("PostgreSQL {text}: older than what tenure was tried on");
        let finding = Finding::new(Severity::Warning, "server", detail);
        return Ok(finding.advise("use PostgreSQL 12 or newer"));
    }
    Ok(Finding::good("server", format!("PostgreSQL {text}")))
}

fn durability(row: &Row) -> Result<Finding> {
    let server_default: String = get(row, "commit_default")?;
    let fsync: String = get(row, "fsync")?;
    if fsync == "off" {
        let detail = "fsync is off: after a power cut leases are forgotten and tokens can go back";
        return Ok(Finding::new(Severity::Warning, "durability", detail).advise("turn fsync on"));
    }
    let current: String = get(row, "commit_current")?;
    if current == "off" {
        let detail = "commits are not waited for: a crash forgets leases, and tokens can go back";
        return Ok(Finding::new(Severity::Fault, "durability", detail)
            .advise("let this role set synchronous_commit, or turn it on"));
    }
    let detail = if server_default == current {
        format!("commits are waited for (synchronous_commit={current})")
    } else {
        format!(
            "synchronous_commit is {server_default} for other clients; tenure's own commits are \
             waited for ({current})"
        )
    };
    Ok(Finding::good("durability", detail))
}

fn encoding(row: &Row) -> Result<Finding> {
    let encoding: String = get(row, "encoding")?;
    Ok(match encoding.as_str() {
        "UTF8" => Finding::good("encoding", "UTF8"),
        other => {
            let detail = format!("{other}: notes with other characters are refused; keys are not");
            Finding::new(Severity::Notice, "encoding", detail).advise("keep notes to ASCII")
        }
    })
}

fn isolation(row: &Row) -> Result<Finding> {
    let current: String = get(row, "isolation")?;
    let default: String = get(row, "isolation_default")?;
    let detail = format!("tenure uses `{current}`; the default of the database is `{default}`");
    Ok(Finding::good("isolation", detail))
}

/// The server's default timeouts. The connections of tenure set their own, so that these are only
/// reported.
fn timeouts(row: &Row, mode: LockMode) -> Result<Finding> {
    let idle: String = get(row, "idle_timeout")?;
    let statement: String = get(row, "statement_timeout")?;
    let lock: String = get(row, "lock_timeout")?;
    let detail = format!(
        "the server's: idle_in_transaction_session_timeout={idle}, statement_timeout={statement}, \
         lock_timeout={lock}; the connections of tenure set their own"
    );
    let number: i32 = get(row, "version_number")?;
    if mode == LockMode::Session && number < HAS_IDLE_SESSION_TIMEOUT {
        let detail = format!("{detail}; this version cannot end the session of a hung holder");
        return Ok(Finding::new(Severity::Warning, "time-outs", detail)
            .advise("use PostgreSQL 14, or set tcp_keepalives_idle and tcp_user_timeout"));
    }
    Ok(Finding::good("time-outs", detail))
}

fn connections(pool: &Pool, row: &Row) -> Result<Finding> {
    let used: i64 = get(row, "connections")?;
    let max: i32 = get(row, "max_connections")?;
    // One more listens.
    let limit = pool.config.connections + usize::from(!pool.config.pooled);
    let detail = format!("{used} of {max} in use; at most {limit} are opened by this client");
    let detail = match pool.config.mode {
        LockMode::Lease => detail,
        LockMode::Session => format!("{detail}, and one that holds all its locks"),
        LockMode::Row => format!("{detail}, and one per lock, at most {}", pool.config.rows),
    };
    if used * 10 > i64::from(max) * 9 {
        return Ok(Finding::new(Severity::Warning, "connections", detail)
            .advise("raise max_connections, or put a pooler in front and say `pooler=yes`"));
    }
    Ok(Finding::good("connections", detail))
}

fn rights(row: &Row) -> Result<Finding> {
    let enough: Option<bool> = get(row, "has_rights")?;
    Ok(match enough {
        Some(true) => Finding::good("rights", "tables and sequence can be used"),
        _ => {
            Finding::new(Severity::Fault, "rights", "the tables cannot be written or do not exist")
                .advise(
                    "grant SELECT, INSERT, UPDATE, DELETE on tenure_* and USAGE on tenure_token",
                )
        }
    })
}

/// Tables in several schemas: their clients do not exclude each other. If the URL names the schema,
/// that may be intended.
fn schema(pool: &Pool, row: &Row) -> Result<Finding> {
    let schema = &pool.config.schema;
    let others: Vec<String> = get(row, "other_schemas")?;
    let name = schema.name();
    if others.is_empty() {
        return Ok(Finding::good("schema", format!("all tables are in `{name}`")));
    }
    let detail = format!(
        "this client uses `{name}`, and there are tables of tenure in `{}` too: their clients and \
         this one do not exclude each other",
        others.join("`, `")
    );
    let severity = if schema.is_chosen() { Severity::Warning } else { Severity::Fault };
    Ok(Finding::new(severity, "schema", detail)
        .advise("name one schema in all URLs (`schema=`), and drop the tables that no client uses"))
}

fn index(row: &Row) -> Result<Finding> {
    let unique: bool = get(row, "has_unique_key")?;
    if unique {
        return Ok(Finding::good("index", "the key of `tenure_lease` is unique"));
    }
    Ok(Finding::new(Severity::Fault, "index", "the key of `tenure_lease` is not unique")
        .advise("create the table again as `tenure schema postgres` prints it"))
}

fn sequence(row: &Row) -> Result<Finding> {
    let cache: Option<i64> = get(row, "sequence_cache")?;
    if cache != Some(1) {
        let detail = "the sequence has a cache and mixes their order";
        return Ok(Finding::new(Severity::Fault, "tokens", detail)
            .advise("ALTER SEQUENCE tenure_token CACHE 1, in the schema of the tables"));
    }
    let step: Option<i64> = get(row, "sequence_step")?;
    if get(row, "has_holders")? && step.is_none_or(|step| step < i64::from(TOKENS_PER_GRANT)) {
        let detail =
            "the sequence counts in steps that are too small: two readers may get one token";
        return Ok(Finding::new(Severity::Fault, "tokens", detail)
            .advise("ALTER SEQUENCE tenure_token INCREMENT BY 1024, in the schema of the tables"));
    }
    Ok(Finding::good("tokens", "the sequence has no cache"))
}

/// Tables of an earlier version do for exclusive locks.
fn modes(pool: &Pool, row: &Row) -> Result<Finding> {
    if !get::<bool>(row, "has_holders")? {
        let detail = "an earlier version made the tables: exclusive locks only";
        return Ok(Finding::new(Severity::Notice, "modes", detail).advise(
            "let their owner run `tenure schema postgres | psql`, and restart the clients",
        ));
    }
    if !pool.has_modes() {
        let detail = "the tables were upgraded after this client started: exclusive locks only";
        return Ok(Finding::new(Severity::Notice, "modes", detail).advise("restart the client"));
    }
    Ok(Finding::good("modes", "shared locks and semaphores can be used"))
}

fn clock(row: &Row) -> Result<Finding> {
    let zone: String = get(row, "time_zone")?;
    let now: String = get(row, "utc_now")?;
    Ok(Finding::good("clock", format!("{now} UTC; time zone `{zone}`, which leases do not use")))
}

async fn pooler_in_front(pool: &Arc<Pool>) -> Result<Finding> {
    if pool.config.pooled {
        let detail =
            "in front, as the URL says: no wake-ups, the first waiter polls four times a second";
        return Ok(Finding::new(Severity::Notice, "pooler", detail)
            .advise("connect past it where waiting has to be fast"));
    }
    Ok(match pooler::probe(pool).await? {
        Some(_) => Finding::good("pooler", "none in front"),
        None => {
            Finding::new(Severity::Fault, "pooler", "statements reach different server sessions")
                .advise("connect past it, or say `pooler=yes` with `mode=lease`")
        }
    })
}
