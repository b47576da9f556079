//! The statements that a client of tenure sends for one acquire and release, as the server logs
//! them, with their parameters in place: a bare client sends the same ones, and they cannot go
//! stale.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mysql_async::prelude::Queryable;
use tenure::Client;
use tenure_servers::Node;
use tokio::runtime::Runtime;

/// What stands around the recorded statements in the log.
const BEGIN: &str = "begin-of-recording";
const END: &str = "end-of-recording";
const KEY: &str = "recorded";
/// How long a server may take to notice that it has to log.
const LIMIT: Duration = Duration::from_secs(10);

/// Those that PostgreSQL logs.
pub(crate) fn postgres(
    runtime: &Runtime,
    client: &Client,
    node: &Node,
    admin: &tokio_postgres::Client,
) -> Result<Vec<String>> {
    let say = |text: &str| runtime.block_on(admin.batch_execute(text));
    let lock = client.lock(KEY);
    let cycle = || runtime.block_on(async { lock.acquire().await?.release().await });
    cycle()?;
    say("ALTER SYSTEM SET log_statement = 'all'")?;
    say("SELECT pg_reload_conf()")?;
    let start = Instant::now();
    let recorded = loop {
        ensure!(start.elapsed() < LIMIT, "PostgreSQL does not log statements");
        say(&format!("SELECT '{BEGIN}'"))?;
        cycle()?;
        say(&format!("SELECT '{END}'"))?;
        let recorded = between(&statements(&node.log_tail(400)));
        if recorded.len() >= 2 {
            break recorded;
        }
    };
    say("ALTER SYSTEM RESET log_statement")?;
    say("SELECT pg_reload_conf()")?;
    Ok(recorded)
}

/// Those that MariaDB logs.
pub(crate) fn mysql(
    runtime: &Runtime,
    client: &Client,
    admin: &mut mysql_async::Conn,
) -> Result<Vec<String>> {
    let lock = client.lock(KEY);
    runtime.block_on(async {
        lock.acquire().await?.release().await?;
        admin.query_drop("SET GLOBAL log_output = 'TABLE'").await?;
        admin.query_drop("SET GLOBAL general_log = 1").await?;
        admin.query_drop(format!("SELECT '{BEGIN}'")).await?;
        lock.acquire().await?.release().await?;
        admin.query_drop(format!("SELECT '{END}'")).await?;
        admin.query_drop("SET GLOBAL general_log = 0").await?;
        let query = "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log \
                     WHERE command_type IN ('Query', 'Execute') ORDER BY event_time";
        let all: Vec<String> = admin.query(query).await?;
        let recorded = between(&all);
        ensure!(recorded.len() >= 2, "MariaDB logs {} statements: {all:?}", recorded.len());
        Ok(recorded)
    })
}

/// Sets the variables of a session that the statements read, as a client does when it connects.
pub(crate) fn setup(statements: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for text in statements {
        for (place, _) in text.match_indices('@') {
            let name: String = text[place + 1..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            let statement = format!("SET @{name} = 'bench'");
            let of_server = text[..place].ends_with('@') || name.is_empty();
            if !of_server && !found.contains(&statement) {
                found.push(statement);
            }
        }
    }
    found
}

/// The statements between the last two marks.
fn between(all: &[String]) -> Vec<String> {
    let last = |mark: &str| all.iter().rposition(|text| text.contains(mark));
    match (last(BEGIN), last(END)) {
        (Some(begin), Some(end)) if begin < end => all[begin + 1..end].to_vec(),
        _ => Vec::new(),
    }
}

/// The statements of a log of PostgreSQL. A record goes on in lines that begin with a tab; the
/// parameters follow in a record of their own.
fn statements(log: &str) -> Vec<String> {
    let log = log.replace("\n\t", " ");
    let mut found: Vec<String> = Vec::new();
    for line in log.lines() {
        if let Some((_, parameters)) = line.split_once("DETAIL:  ") {
            let parameters = parameters.split_once("arameters: ").map_or("", |(_, rest)| rest);
            if let Some(last) = found.last_mut() {
                *last = with_parameters(last, parameters);
            }
        } else if let Some((_, text)) = line.split_once("LOG:  ")
            && let Some((kind, text)) = text.split_once(": ")
            && (kind == "statement" || kind.starts_with("execute "))
        {
            found.push(text.to_owned());
        }
    }
    found
}

/// Puts parameters like `$1 = 'a', $2 = NULL` in their places.
fn with_parameters(statement: &str, parameters: &str) -> String {
    let mut values = Vec::new();
    let mut rest = parameters;
    while let Some((_, after)) = rest.split_once(" = ") {
        let length = literal(after);
        values.push(&after[..length]);
        rest = &after[length..];
    }
    let mut text = statement.to_owned();
    // From the last one: `$1` is also the beginning of `$10`.
    for (number, value) in values.iter().enumerate().rev() {
        text = text.replace(&format!("${}", number + 1), value);
    }
    text
}

/// How long the literal at the beginning is: `NULL`, or a text in quotes.
fn literal(text: &str) -> usize {
    if !text.starts_with('\'') {
        return text.find(',').unwrap_or(text.len());
    }
    let bytes = text.as_bytes();
    let mut place = 1;
    while place < bytes.len() {
        let quoted = bytes[place] == b'\'' && bytes.get(place + 1) == Some(&b'\'');
        if bytes[place] == b'\'' && !quoted {
            return place + 1;
        }
        place += if quoted { 2 } else { 1 };
    }
    text.len()
}

/// The user, the password and the database in a URL.
pub(crate) fn login(url: &str) -> Result<(String, String, String)> {
    let config: tokio_postgres::Config = url.parse()?;
    let user = config.get_user().context("a user")?.to_owned();
    let password = String::from_utf8_lossy(config.get_password().unwrap_or_default()).into_owned();
    let database = config.get_dbname().unwrap_or(&user).to_owned();
    Ok((user, password, database))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_a_session_are_set() {
        let texts = ["UPDATE t SET a=@home, b=@@read_only, c=@home".to_owned()];
        assert_eq!(setup(&texts), ["SET @home = 'bench'"]);
    }

    #[test]
    fn statements_are_read_from_a_log_with_their_parameters() {
        let log = "2026 UTC [7] LOG:  statement: SELECT 'begin-of-recording'\n\
                   2026 UTC [8] LOG:  execute s1: INSERT INTO t\n\t VALUES ($1, $10, $2)\n\
                   2026 UTC [8] DETAIL:  Parameters: $1 = 'it''s', $2 = NULL, $3 = '\\x6b'\n\
                   2026 UTC [8] LOG:  execute <unnamed>: DELETE FROM t WHERE k = $1\n\
                   2026 UTC [8] DETAIL:  parameters: $1 = 'a, b'\n\
                   2026 UTC [7] LOG:  statement: SELECT 'end-of-recording'\n";
        let recorded = between(&statements(log));
        let first = "INSERT INTO t  VALUES ('it''s', 'it''s'0, NULL)";
        assert_eq!(recorded, [first, "DELETE FROM t WHERE k = 'a, b'"]);
    }
}
