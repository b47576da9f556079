//! What on the server could break a lock: a pooler, time-outs, durability, rights, tables.

use std::sync::Arc;

use tokio_postgres::Row;

use super::lanes::Lanes;
use super::lease::get;
use super::link::Sql;
use super::pooler;
use super::settings::Kind;
use crate::error::Result;
use crate::finding::{Finding, Grade};

pub(super) async fn examine(lanes: &Arc<Lanes>) -> Result<Vec<Finding>> {
    let rows = lanes.ask(&FACTS, vec![]).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let mut findings = vec![version(row)?, durability(row)?, encoding(row)?, isolation(row)?];
    findings.push(time_outs(row, lanes.settings.mode)?);
    findings.push(connections(lanes, row)?);
    findings.push(rights(row)?);
    findings.push(schema(lanes, row)?);
    findings.push(index(row)?);
    findings.push(sequence(row)?);
    findings.push(clock(row)?);
    findings.push(front(lanes).await?);
    Ok(findings)
}

fn version(row: &Row) -> Result<Finding> {
    let (number, text): (i32, String) = (get(row, 0)?, get(row, 1)?);
    if number < OLDEST {
        let detail = format!("PostgreSQL {text}: older than what tenure was tried on");
        let finding = Finding::new(Grade::Warning, "server", detail);
        return Ok(finding.advise("use PostgreSQL 12 or newer"));
    }
    Ok(Finding::good("server", format!("PostgreSQL {text}")))
}

fn durability(row: &Row) -> Result<Finding> {
    let (commit, fsync): (String, String) = (get(row, 2)?, get(row, 3)?);
    if fsync == "off" {
        let detail = "fsync is off: after a power cut leases are forgotten and tokens can go back";
        return Ok(Finding::new(Grade::Warning, "durability", detail).advise("turn fsync on"));
    }
    let ours: String = get(row, 18)?;
    if ours == "off" {
        let detail = "commits are not waited for: a crash forgets leases, and tokens can go back";
        return Ok(Finding::new(Grade::Fault, "durability", detail)
            .advise("let this role set synchronous_commit, or turn it on"));
    }
    let detail = match commit == ours {
        true => format!("commits are waited for (synchronous_commit={ours})"),
        false => format!(
            "synchronous_commit is {commit} for others; our own commits are waited for ({ours})"
        ),
    };
    Ok(Finding::good("durability", detail))
}

fn encoding(row: &Row) -> Result<Finding> {
    let encoding: String = get(row, 4)?;
    Ok(match encoding.as_str() {
        "UTF8" => Finding::good("encoding", "UTF8"),
        other => {
            let detail = format!("{other}: notes with other characters are refused; keys are not");
            Finding::new(Grade::Notice, "encoding", detail).advise("keep notes to ASCII")
        }
    })
}

fn isolation(row: &Row) -> Result<Finding> {
    let (ours, theirs): (String, String) = (get(row, 5)?, get(row, 6)?);
    let detail = format!("ours is `{ours}`; the default of the database is `{theirs}`");
    Ok(Finding::good("isolation", detail))
}

/// Time-outs that the server has for everybody. We set our own, so these are only told.
fn time_outs(row: &Row, mode: Kind) -> Result<Finding> {
    let (idle, statement): (String, String) = (get(row, 7)?, get(row, 8)?);
    let lock: String = get(row, 9)?;
    let detail = format!(
        "the server's: idle_in_transaction_session_timeout={idle}, statement_timeout={statement}, \
         lock_timeout={lock}; our connections set their own"
    );
    let number: i32 = get(row, 0)?;
    if mode == Kind::Session && number < IDLE_SESSION {
        let detail = format!("{detail}; this version cannot end the session of a hung holder");
        return Ok(Finding::new(Grade::Warning, "time-outs", detail)
            .advise("use PostgreSQL 14, or set tcp_keepalives_idle and tcp_user_timeout"));
    }
    Ok(Finding::good("time-outs", detail))
}

fn connections(lanes: &Lanes, row: &Row) -> Result<Finding> {
    let (used, most): (i64, i32) = (get(row, 10)?, get(row, 11)?);
    let ours = lanes.settings.connections;
    let detail = format!("{used} of {most} in use; at most {ours} are opened by this client");
    let detail = match lanes.settings.mode {
        Kind::Lease => detail,
        Kind::Session => format!("{detail}, and one that holds all its locks"),
        Kind::Row => format!("{detail}, and one per lock, at most {}", lanes.settings.rows),
    };
    if used * 10 > i64::from(most) * 9 {
        return Ok(Finding::new(Grade::Warning, "connections", detail)
            .advise("raise max_connections, or put a pooler in front and say `pooler=yes`"));
    }
    Ok(Finding::good("connections", detail))
}

fn rights(row: &Row) -> Result<Finding> {
    let enough: Option<bool> = get(row, 12)?;
    Ok(match enough {
        Some(true) => Finding::good("rights", "tables and sequence can be used"),
        _ => Finding::new(Grade::Fault, "rights", "the tables cannot be written or do not exist")
            .advise("grant SELECT, INSERT, UPDATE, DELETE on tenure_* and USAGE on tenure_token"),
    })
}

/// Tables in several schemas: their clients do not exclude each other. Where the URL names the
/// schema, that may be meant.
fn schema(lanes: &Lanes, row: &Row) -> Result<Finding> {
    let (ours, others): (_, Vec<String>) = (&lanes.settings.schema, get(row, 17)?);
    let name = ours.name();
    if others.is_empty() {
        return Ok(Finding::good("schema", format!("all tables are in `{name}`")));
    }
    let detail = format!(
        "ours is `{name}`, and there are tables of tenure in `{}` too: their clients and ours do \
         not exclude each other",
        others.join("`, `")
    );
    let grade = if ours.is_chosen() { Grade::Warning } else { Grade::Fault };
    Ok(Finding::new(grade, "schema", detail)
        .advise("name one schema in all URLs (`schema=`), and drop what nobody uses"))
}

fn index(row: &Row) -> Result<Finding> {
    let unique: bool = get(row, 13)?;
    Ok(match unique {
        true => Finding::good("index", "the key of `tenure_lease` is unique"),
        false => Finding::new(Grade::Fault, "index", "the key of `tenure_lease` is not unique")
            .advise("make the table anew as `tenure schema postgres` prints it"),
    })
}

fn sequence(row: &Row) -> Result<Finding> {
    let cache: Option<i64> = get(row, 14)?;
    Ok(match cache {
        Some(1) => Finding::good("tokens", "the sequence has no cache"),
        _ => Finding::new(Grade::Fault, "tokens", "the sequence has a cache and mixes them")
            .advise("ALTER SEQUENCE tenure_token CACHE 1, in the schema of the tables"),
    })
}

fn clock(row: &Row) -> Result<Finding> {
    let (zone, now): (String, String) = (get(row, 15)?, get(row, 16)?);
    Ok(Finding::good("clock", format!("{now} UTC; time zone `{zone}`, which leases do not use")))
}

async fn front(lanes: &Arc<Lanes>) -> Result<Finding> {
    if lanes.settings.pooled {
        let detail = "said to be there: no wake-ups, waiters look four times a second";
        return Ok(Finding::new(Grade::Notice, "pooler", detail)
            .advise("connect past it where waiting has to be fast"));
    }
    Ok(match pooler::probe(lanes).await? {
        Some(_) => Finding::good("pooler", "none in front"),
        None => Finding::new(Grade::Fault, "pooler", "statements reach different server sessions")
            .advise("connect past it, or say `pooler=yes` with `mode=lease`"),
    })
}

static FACTS: Sql = Sql {
    text: "SELECT current_setting('server_version_num')::int4, current_setting('server_version'),
  (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'), current_setting('fsync'),
  current_setting('server_encoding'), current_setting('transaction_isolation'),
  (SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_isolation'),
  (SELECT reset_val FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'),
  (SELECT reset_val FROM pg_settings WHERE name = 'statement_timeout'),
  (SELECT reset_val FROM pg_settings WHERE name = 'lock_timeout'),
  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
  current_setting('max_connections')::int4,
  (SELECT bool_and(has_table_privilege(to_regclass(t), p))
     FROM unnest(ARRAY['@.tenure_lease', '@.tenure_board', '@.tenure_row']) t,
          unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p)
    AND has_sequence_privilege(to_regclass('@.tenure_token'), 'USAGE'),
  EXISTS (SELECT 1 FROM pg_index i JOIN pg_attribute a
    ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = to_regclass('@.tenure_lease') AND i.indisunique AND i.indisvalid
      AND i.indnkeyatts = 1 AND a.attname = 'key'),
  (SELECT seqcache FROM pg_sequence WHERE seqrelid = to_regclass('@.tenure_token')),
  current_setting('TimeZone'),
  to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'),
  ARRAY(SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = 'tenure_lease' AND c.relkind IN ('r', 'p')
      AND c.oid IS DISTINCT FROM to_regclass('@.tenure_lease') ORDER BY 1),
  current_setting('synchronous_commit')",
    types: &[],
};

const OLDEST: i32 = 120_000;
/// The first version with `idle_session_timeout`.
const IDLE_SESSION: i32 = 140_000;
