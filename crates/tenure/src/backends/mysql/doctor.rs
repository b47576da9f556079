//! Checks of the server for `tenure doctor`: what could break a lock, or prevent one from being
//! granted.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::config::LockMode;
use super::layout::{rows, schema};
use super::lease::{LockTables, QUERY_LIMIT};
use crate::error::Result;
use crate::finding::{Finding, Severity};

/// The global variables that the checks read.
const VARIABLES: &[&str] = &[
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

pub(super) async fn doctor(tables: &LockTables) -> Result<Vec<Finding>> {
    let variables = Variables::read(tables).await?;
    let mut findings = vec![
        server(&variables),
        clock(tables).await?,
        session(tables).await?,
        durability(&variables),
        writes(&variables),
        log_format(&variables),
        cluster(&variables),
        connections(tables, &variables).await?,
    ];
    for table in schema::tables(tables.statements.mode) {
        findings.push(check_table(tables, table).await?);
    }
    if tables.statements.other_modes {
        findings.push(check_table(tables, schema::HOLDERS).await?);
    } else if tables.statements.mode == LockMode::Lease {
        findings.push(no_other_modes());
    }
    Ok(findings)
}

/// Global variables of the server, by name; those that it does not have are missing.
struct Variables(HashMap<String, String>);

impl Variables {
    async fn read(tables: &LockTables) -> Result<Variables> {
        let names: Vec<_> = VARIABLES.iter().map(|name| format!("'{name}'")).collect();
        let names = names.join(",");
        let sql = format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})");
        let response = tables.main().execute(sql, QUERY_LIMIT).await?;
        let mut variables = HashMap::new();
        for row in response.result_sets.first().into_iter().flatten() {
            variables.insert(rows::text(row, "Variable_name")?, rows::text(row, "Value")?);
        }
        Ok(Variables(variables))
    }

    /// The value of a variable, or an empty text.
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
}

/// Renewals need `SKIP LOCKED`, which older servers that are still in use do not have.
fn server(variables: &Variables) -> Finding {
    let version = variables.get("version");
    let least = if version.contains("MariaDB") { (10, 6) } else { (8, 0) };
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < least => {
            Finding::new(Severity::Fault, "server", format!("{version} is too old to renew locks"))
                .advise("MySQL 8.0 or MariaDB 10.6 are the first that will do")
        }
        _ => Finding::good("server", version),
    }
}

/// Leases are counted by the server's clock alone. A wrong clock is worth a notice, because setting
/// it right moves the end of every lease.
async fn clock(tables: &LockTables) -> Result<Finding> {
    let sql = "SELECT TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)) AS server_time,\
               @@global.time_zone AS zone";
    let response = tables.main().execute(sql.to_owned(), QUERY_LIMIT).await?;
    let server_time = response.first::<u64>("server_time").unwrap_or_default();
    let local_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let apart = local_time.abs_diff(Duration::from_micros(server_time));
    let zone = response.first::<String>("zone").unwrap_or_default();
    let seconds = apart.as_secs_f64();
    if apart > Duration::from_secs(2) {
        let detail = format!("the clocks of server and client are {seconds:.1} s apart");
        return Ok(Finding::new(Severity::Notice, "clock", detail).advise(
            "let both follow NTP: if the server's clock is set forward, leases end early",
        ));
    }
    let detail =
        format!("{seconds:.1} s from the client's; leases are in UTC, the server's zone is {zone}");
    Ok(Finding::good("clock", detail))
}

/// Whether a proxy shares the connection with other clients, and how it is isolated.
async fn session(tables: &LockTables) -> Result<Finding> {
    let sql = "SELECT IS_USED_LOCK(CONCAT('tenure:',@tenure_home))<=>CONNECTION_ID() \
               AS is_exclusive;\
               SHOW SESSION VARIABLES WHERE Variable_name \
               IN ('tx_isolation','transaction_isolation')";
    let response = tables.main().execute(sql.to_owned(), QUERY_LIMIT).await?;
    if response.first::<bool>("is_exclusive") != Some(true) {
        let detail = "statements of one connection reach the server over several";
        return Ok(Finding::new(Severity::Warning, "proxy", detail)
            .advise("only mode=lease works there, with slower wake-ups; or connect directly"));
    }
    let level = response.last_row().map(|row| rows::text(row, "Value")).transpose()?;
    let level = level.unwrap_or_default();
    let detail = format!("not shared by a proxy; {level}, whatever the server's default");
    Ok(Finding::good("connection", detail))
}

fn durability(variables: &Variables) -> Finding {
    let subject = "durability";
    let binlog = variables.get("log_bin") == "ON" && variables.get("sync_binlog") != "1";
    match variables.get("innodb_flush_log_at_trx_commit") {
        "0" => Finding::new(
            Severity::Warning,
            subject,
            "a crash of the server forgets up to a second of grants, and their tokens come again",
        )
        .advise("set innodb_flush_log_at_trx_commit to 1"),
        "2" => Finding::new(Severity::Notice, subject, "a power cut can forget a second of grants")
            .advise("set innodb_flush_log_at_trx_commit to 1 if tokens must never come again"),
        _ if binlog => {
            let detail = "the binary log is not synced: after a crash a replica may differ";
            Finding::new(Severity::Notice, subject, detail).advise("set sync_binlog to 1")
        }
        _ => Finding::good(subject, "every grant is synced before the response"),
    }
}

fn writes(variables: &Variables) -> Finding {
    match variables.get("read_only") {
        "ON" | "1" => Finding::new(Severity::Fault, "writes", "the server is read-only")
            .advise("name the primary in the URL"),
        _ => Finding::good("writes", "accepted: this is a primary"),
    }
}

fn log_format(variables: &Variables) -> Finding {
    let on = variables.get("log_bin");
    let format = variables.get("binlog_format");
    if on == "ON" && format == "STATEMENT" {
        let detail = "binlog_format is STATEMENT, which READ COMMITTED cannot be logged in";
        return Finding::new(Severity::Fault, "binary log", detail)
            .advise("set it to ROW or MIXED");
    }
    Finding::good("binary log", if on == "ON" { format } else { "off" })
}

fn cluster(variables: &Variables) -> Finding {
    if variables.get("wsrep_on") == "ON" {
        let detail =
            "Galera: two nodes can grant one lock, and one of the holders is told too late";
        return Finding::new(Severity::Warning, "cluster", detail)
            .advise("let every client use the same node");
    }
    if !variables.get("group_replication_group_name").is_empty()
        && variables.get("group_replication_single_primary_mode") == "OFF"
    {
        let detail = "group replication with several primaries: two of them can grant one lock";
        return Finding::new(Severity::Warning, "cluster", detail).advise("use one primary");
    }
    Finding::good("cluster", "one primary")
}

async fn connections(tables: &LockTables, variables: &Variables) -> Result<Finding> {
    let sql = "SHOW GLOBAL STATUS LIKE 'Threads_connected'".to_owned();
    let response = tables.main().execute(sql, QUERY_LIMIT).await?;
    let used = response.first::<String>("Value").and_then(|text| text.parse().ok());
    let used: u64 = used.unwrap_or(0);
    let max: u64 = variables.get("max_connections").parse().unwrap_or(u64::MAX);
    let wait_timeout = variables.get("wait_timeout");
    let detail = format!("{used} of {max} in use; wait_timeout {wait_timeout} s");
    if used.saturating_mul(10) > max.saturating_mul(9) {
        return Ok(Finding::new(Severity::Warning, "connections", detail)
            .advise("raise max_connections: a client that cannot connect cannot renew"));
    }
    Ok(Finding::good("connections", detail))
}

/// The client could neither use nor create the table of shared locks and semaphores.
fn no_other_modes() -> Finding {
    let detail = "exclusive locks only: this user cannot use the table, or the server is too old";
    Finding::new(Severity::Notice, schema::HOLDERS, detail)
        .advise("for the others let an administrator run what `tenure schema mysql` prints")
}

/// Whether a table has the engine and the primary key that the schema gives it.
async fn check_table(tables: &LockTables, table: &str) -> Result<Finding> {
    let sql = format!(
        "SELECT ENGINE AS engine_name,TABLE_ROWS AS row_estimate FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA=DATABASE() AND TABLE_NAME='{table}';\
         SELECT COUNT(*) AS primary_keys FROM information_schema.STATISTICS \
         WHERE TABLE_SCHEMA=DATABASE() AND TABLE_NAME='{table}' \
         AND INDEX_NAME='PRIMARY' AND SEQ_IN_INDEX=1 AND COLUMN_NAME IN ('k','id')"
    );
    let response = tables.main().execute(sql, QUERY_LIMIT).await?;
    let engine = response.first::<String>("engine_name").unwrap_or_default();
    let row_estimate = response.first::<u64>("row_estimate").unwrap_or(0);
    let primary_keys = response.last_row().map(|row| rows::value::<u64>(row, "primary_keys"));
    let wrong = if !engine.eq_ignore_ascii_case("innodb") {
        format!("its engine is `{engine}`, which has no row locks")
    } else if primary_keys.transpose()? != Some(1) {
        "it lacks its primary key: two claims could hold one lock".to_owned()
    } else {
        let detail = format!("InnoDB with its key, about {row_estimate} rows");
        return Ok(Finding::good(table, detail));
    };
    Ok(Finding::new(Severity::Fault, table, wrong)
        .advise("drop it while no lock is held, and run `tenure schema mysql`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_skip_locked_is_reported() {
        for (version, severity) in [
            ("10.11.19-MariaDB-0+deb12u1", Severity::Good),
            ("10.5.21-MariaDB", Severity::Fault),
            ("9.7.4-2", Severity::Good),
            ("8.0.40", Severity::Good),
            ("5.7.44-log", Severity::Fault),
            ("strange", Severity::Good),
        ] {
            let variables = Variables([("version".to_owned(), version.to_owned())].into());
            assert_eq!(server(&variables).severity, severity, "{version}");
        }
    }
}
