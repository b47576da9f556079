//! What on the server could break a lock, or keep it from being had.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::lease::{LOOK, Lease};
use super::options::Kind;
use super::schema;
use super::state;
use crate::error::Result;
use crate::finding::{Finding, Grade};

pub(super) async fn run(lease: &Lease, kind: Kind) -> Result<Vec<Finding>> {
    let answer = lease.main().ask(variables_sql(), LOOK).await?;
    let rows = answer.sets.first().map(Vec::as_slice).unwrap_or_default();
    let pairs = rows.iter().map(|row| Ok((state::text(row, 0)?, state::text(row, 1)?)));
    let variables = Variables(pairs.collect::<Result<_>>()?);
    let mut findings = vec![
        server(&variables),
        clock(lease).await?,
        session(lease).await?,
        durability(&variables),
        writes(&variables),
        log_format(&variables),
        cluster(&variables),
        connections(lease, &variables).await?,
    ];
    findings.extend(tables(lease, kind).await?);
    Ok(findings)
}

/// What the server says of itself; names that it does not know are missing.
struct Variables(HashMap<String, String>);

impl Variables {
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
}

fn variables_sql() -> String {
    let names: Vec<_> = NAMES.iter().map(|name| format!("'{name}'")).collect();
    format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({})", names.join(","))
}

/// `SKIP LOCKED`, which renewals need, is newer than servers that some still run.
fn server(variables: &Variables) -> Finding {
    let version = variables.get("version");
    let least = if version.contains("MariaDB") { (10, 6) } else { (8, 0) };
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < least => {
            Finding::new(Grade::Fault, "server", format!("{version} is too old to renew locks"))
                .advise("MySQL 8.0 or MariaDB 10.6 are the first that will do")
        }
        _ => Finding::good("server", version),
    }
}

/// Leases are counted by the server's clock alone; a clock that is wrong is worth knowing, because
/// somebody will set it.
async fn clock(lease: &Lease) -> Result<Finding> {
    let sql = "SELECT TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)),\
               @@global.time_zone,@@system_time_zone";
    let answer = lease.main().ask(sql.to_owned(), LOOK).await?;
    let theirs = Duration::from_micros(answer.first::<u64>(0).unwrap_or_default());
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let apart = ours.abs_diff(theirs);
    let zone = answer.first::<String>(1).unwrap_or_default();
    let seconds = apart.as_secs_f64();
    if apart > Duration::from_secs(2) {
        let detail = format!("the server's clock and ours are {seconds:.1} s apart");
        return Ok(Finding::new(Grade::Notice, "clock", detail).advise(
            "let both follow NTP: if the server's clock is set forward, leases end early",
        ));
    }
    let detail = format!("{seconds:.1} s from ours; leases are in UTC, its zone is {zone}");
    Ok(Finding::good("clock", detail))
}

/// Whether the connection is ours alone, and how it is isolated.
async fn session(lease: &Lease) -> Result<Finding> {
    let sql = "SELECT IS_USED_LOCK(CONCAT('tenure:',@tenure_home))<=>CONNECTION_ID();\
               SHOW SESSION VARIABLES WHERE Variable_name \
               IN ('tx_isolation','transaction_isolation')";
    let answer = lease.main().ask(sql.to_owned(), LOOK).await?;
    if answer.first::<bool>(0) != Some(true) {
        let detail = "statements of one connection reach the server over several";
        return Ok(Finding::new(Grade::Warning, "proxy", detail)
            .advise("only mode=lease works there, with slower wake-ups; or connect directly"));
    }
    let level = answer.last().map(|row| state::text(row, 1)).transpose()?.unwrap_or_default();
    Ok(Finding::good("connection", format!("ours alone, {level} whatever the server's default")))
}

fn durability(variables: &Variables) -> Finding {
    let subject = "durability";
    let binlog = variables.get("log_bin") == "ON" && variables.get("sync_binlog") != "1";
    match variables.get("innodb_flush_log_at_trx_commit") {
        "0" => Finding::new(
            Grade::Warning,
            subject,
            "a crash of the server forgets up to a second of grants, and their tokens come again",
        )
        .advise("set innodb_flush_log_at_trx_commit to 1"),
        "2" => Finding::new(Grade::Notice, subject, "a power cut can forget a second of grants")
            .advise("set innodb_flush_log_at_trx_commit to 1 if tokens must never come again"),
        _ if binlog => {
            let detail = "the binary log is not synced: after a crash a replica may differ";
            Finding::new(Grade::Notice, subject, detail).advise("set sync_binlog to 1")
        }
        _ => Finding::good(subject, "every grant is synced before it is answered"),
    }
}

fn writes(variables: &Variables) -> Finding {
    match variables.get("read_only") {
        "ON" | "1" => Finding::new(Grade::Fault, "writes", "the server is read-only")
            .advise("name the primary in the URL"),
        _ => Finding::good("writes", "taken: this is a primary"),
    }
}

fn log_format(variables: &Variables) -> Finding {
    let (on, format) = (variables.get("log_bin"), variables.get("binlog_format"));
    if on == "ON" && format == "STATEMENT" {
        let detail = "binlog_format is STATEMENT, which READ COMMITTED cannot be logged in";
        return Finding::new(Grade::Fault, "binary log", detail).advise("set it to ROW or MIXED");
    }
    Finding::good("binary log", if on == "ON" { format } else { "off" })
}

fn cluster(variables: &Variables) -> Finding {
    if variables.get("wsrep_on") == "ON" {
        let detail = "Galera: two nodes can grant one lock, and one is told too late";
        return Finding::new(Grade::Warning, "cluster", detail)
            .advise("let every client use the same node");
    }
    if !variables.get("group_replication_group_name").is_empty()
        && variables.get("group_replication_single_primary_mode") == "OFF"
    {
        let detail = "group replication with several primaries: two of them can grant one lock";
        return Finding::new(Grade::Warning, "cluster", detail).advise("use one primary");
    }
    Finding::good("cluster", "one primary")
}

async fn connections(lease: &Lease, variables: &Variables) -> Result<Finding> {
    let sql = "SHOW GLOBAL STATUS LIKE 'Threads_connected'".to_owned();
    let answer = lease.main().ask(sql, LOOK).await?;
    let used: u64 = answer.first::<String>(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    let most: u64 = variables.get("max_connections").parse().unwrap_or(u64::MAX);
    let silence = variables.get("wait_timeout");
    let detail = format!("{used} of {most} in use; wait_timeout {silence} s");
    Ok(match used.saturating_mul(10) > most.saturating_mul(9) {
        true => Finding::new(Grade::Warning, "connections", detail)
            .advise("raise max_connections: who cannot connect cannot renew"),
        false => Finding::good("connections", detail),
    })
}

/// Whether the tables are as we make them.
async fn tables(lease: &Lease, kind: Kind) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for table in schema::tables(kind) {
        let sql = format!(
            "SELECT ENGINE,TABLE_ROWS FROM information_schema.TABLES \
             WHERE TABLE_SCHEMA=DATABASE() AND TABLE_NAME='{table}';\
             SELECT COUNT(*) FROM information_schema.STATISTICS \
             WHERE TABLE_SCHEMA=DATABASE() AND TABLE_NAME='{table}' \
             AND INDEX_NAME='PRIMARY' AND SEQ_IN_INDEX=1 AND COLUMN_NAME IN ('k','id')"
        );
        let answer = lease.main().ask(sql, LOOK).await?;
        let engine = answer.first::<String>(0).unwrap_or_default();
        let rows = answer.first::<u64>(1).unwrap_or(0);
        let key = answer.last().map(|row| state::value::<u64>(row, 0)).transpose()?;
        let wrong = if !engine.eq_ignore_ascii_case("innodb") {
            Some(format!("its engine is `{engine}`, which has no row locks"))
        } else if key != Some(1) {
            Some("it lacks its primary key: two could hold one lock".to_owned())
        } else {
            None
        };
        findings.push(match wrong {
            Some(wrong) => Finding::new(Grade::Fault, *table, wrong)
                .advise("drop it while nobody holds a lock, and run `tenure schema mysql`"),
            None => Finding::good(*table, format!("InnoDB with its key, about {rows} rows")),
        });
    }
    Ok(findings)
}

const NAMES: &[&str] = &[
    "version",
    "innodb_flush_log_at_trx_commit",
    "sync_binlog",
    "log_bin",
    "binlog_format",
    "read_only",
    "wsrep_on",
    "group_replication_group_name",
    "group_replication_single_primary_mode",
    "max_connections",
    "wait_timeout",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_cannot_skip_locked_rows_is_named() {
        for (version, grade) in [
            ("10.11.19-MariaDB-0+deb12u1", Grade::Good),
            ("10.5.21-MariaDB", Grade::Fault),
            ("9.7.4-2", Grade::Good),
            ("8.0.40", Grade::Good),
            ("5.7.44-log", Grade::Fault),
            ("strange", Grade::Good),
        ] {
            let variables = Variables([("version".to_owned(), version.to_owned())].into());
            assert_eq!(server(&variables).grade, grade, "{version}");
        }
    }
}
