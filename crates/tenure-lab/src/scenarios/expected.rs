//! The expected verdicts: one row per scenario, one column per lock.
//!
//! `✔` exclusive and live, `U` two holders but a fence on reading and writing saves the data, `U!`
//! not even that, `T` stuck until the lease ends, `T+` for longer, `∞` until an operator
//! intervenes, `$` costs more than its limit, `–` cannot happen. Two of them, as in `T|T+`, where
//! the server decides.

use crate::schemes::LOCKS;

/// The columns are the locks in their order:
/// setnx-expire, getset, script, set-nx, unique, deadline, watchdog, redlock-classic; sqlite,
/// redis, redis-replicas, redlock; postgres, postgres-session, postgres-row; mysql, mysql-session;
/// zookeeper-ephemeral, zookeeper; etcd, consul.
const TABLE: &str = "
oversell        U! U! U! U! U  U  U  U!  U  U  U  U   U  U  U   U  U   U  U   U  U
pause           U! U! U! U! U  U  U  U!  U  U  U  U   U  U  U   U  U   U  U   U  U
wrong-owner     U! U! U! U! ✔  ✔  ✔  ✔   ✔  ✔  ✔  ✔   ✔  ✔  ✔   ✔  ✔   ✔  ✔   ✔  ✔
suspend         U! U! U! U! U U U U! T T T T T T|T+ T|T+ T T|T+ T T T T|T+
crash-between   ∞ T T T T T T T – T – T T ✔ ✔ T ✔ T T T T|T+
killed          T T T T T T T T ✔ T T T T ✔ ✔ T ✔ T T T T|T+
dropped         ∞  T  T  T  T  T  T  T   –  ✔  –  ✔   ✔  ✔  ✔   ✔  ✔   ✔  ✔   ✔  ✔
dead-waiters    ✔  ✔  ✔  ✔  ✔  ✔  ✔  ✔   ✔  T  T  ✔|T  T  T  T   T  ✔|T  ✔|T T   T  ✔|T
answer-lost     ∞  T  T  T  T  T  T  ✔   –  ✔  –  ✔   ✔  ✔  ✔   ✔  ✔   ✔  ✔   ✔  ✔
late-grant      T+ U! U! U! U T U T – T|T+ – ✔|T|T+ T|T+ T|T+ ✔ T|T+ ✔|T|T+ T|T+ T|T+ T|T+ T|T+
answers-lost    T T T T T T ∞ T – T|T+ – T|T+ T|T+ T|T+ T|T+ T|T+ T|T+ T|T+ T|T+ T|T+ T|T+
wakeup-lost     –  –  –  –  –  –  T  –   –  ✔  –  ✔   ✔  ✔  ✔   ✔  ✔   ✔  ✔   ✔  ✔
partition       U! U! U! U! U T U U! – T – T T T|T+ T|T+ T T|T+ T T T T|T+
packets-lost    U! U! U! U! U T U U! – T – T T T|T+ T|T+ T T|T+ T T T T|T+
session-killed  U! U! U! U! U  U  U  U!  U  U  U  U   U  U  U   U  U   U  U   U  U
failover        U! U! U! U! U! U! U! – – U T|T+ – – – – – – – – – –
failover-slow   U! U! U! U! U! U! U! – – U ✔|T|T+ – – – – – – – – – –
failover-renewed – – – – – – U – – U ✔|T|T+ – – – – – – – – – –
amnesia         U! U! U! U! U! U! U! U!  –  U  –  U   ✔  U  U   ✔  U   ✔  ✔   ✔  –
clock-forward   U! ✔  U! U! U  U  U  U!  –  U  –  U   U  ✔  ✔   U  ✔   ✔  ✔   –  –
clock-back      T+ T  T+ T+ T+ T+ T+ T+  –  T+ –  T+  T+ ✔  ✔   T+ ✔   T  T   –  –
client-clocks   ✔  U! ✔  ✔  ✔  ✔  ✔  ✔   ✔  ✔  ✔  ✔   ✔  ✔  ✔   ✔  ✔   ✔  ✔   ✔  ✔
leader-lost     – – – – – – – – – – – – – – – – – T|T+ T|T+ T|T+ T|T+
eviction        U! ✔  U! U! U  U  U  U!  –  U  –  U   –  –  –   –  –   –  –   –  –
release-lost    – – – – – – – – – ✔|T – ✔|T ✔|T ✔|T ✔|T ✔|T ✔|T ✔|T ✔|T ✔|T ✔|T
repeat-last     – – – – – – – – – – – – ✔|T – – ✔|T – – – – –
blocked-row     – – – – – – – – – – – – ✔ – – ✔ ✔ – – – –
frozen-shard    – – – – – – – – – ✔ – ✔ – – – – – – – – –
read-only       – – – – – – – – – ✔ – – – – – ✔ ✔ – – – –
herd            $  $  $  $  $  $  $  $   –  ✔  ✔  $   ✔  $  $   $  $   $  $   $  $
names           ✔  ✔  ✔  ✔  $  $  $  ✔   ✔  ✔  ✔  ✔   ✔  ✔  ✔   ✔  ✔   ✔  ✔   ✔  ✔
";

/// The expected verdict, or why the fault cannot happen to this lock.
pub(super) fn expected(scenario: &str, lock: &str) -> Result<&'static str, &'static str> {
    let column = LOCKS.iter().position(|known| known.name == lock);
    let mut rows = TABLE.lines().map(str::split_whitespace);
    let row = rows.find_map(|mut words| (words.next() == Some(scenario)).then_some(words));
    match column.and_then(|column| row?.nth(column)) {
        None => Err("it is not in the table"),
        Some("–") => Err(why_not(scenario, lock)),
        Some(cell) => Ok(cell),
    }
}

fn why_not(scenario: &str, lock: &str) -> &'static str {
    match (scenario, lock) {
        ("failover-renewed", _) if lock.starts_with("redis-") && lock != "redis-replicas" => {
            "it is not renewed"
        }
        ("failover-renewed", "redlock" | "redlock-classic") => {
            "its nodes do not replicate to each other"
        }
        ("failover-renewed", _) => "the lab has replicas of Redis only",
        ("repeat-last" | "blocked-row", _) => "it has no rows with leases",
        ("frozen-shard", "redis-replicas") => "as `redis`",
        ("frozen-shard", _) => "its locks are not spread over servers, or it renews none",
        ("read-only", "redis-replicas") => "as `failover`",
        ("read-only", _) if lock.starts_with("postgres") => {
            "a PostgreSQL that is demoted starts again, which ends its connections"
        }
        ("read-only", _) => "its servers are not demoted under a name, or it is hand-written",
        ("release-lost", _) if lock.starts_with("redis-") && lock != "redis-replicas" => {
            "a hand-written scheme does not repeat a release"
        }
        ("release-lost", "redlock-classic") => "a hand-written scheme does not repeat a release",
        ("failover" | "failover-slow", "redlock" | "redlock-classic") => {
            "its nodes do not replicate to each other"
        }
        ("failover" | "failover-slow", _) => "the lab has replicas of Redis only",
        (_, "redis-replicas") => "as `redis`; the lab has no proxy between it and its sentinels",
        ("amnesia", "consul") => {
            "a development agent stores nothing, and is not used in production"
        }
        ("amnesia", "sqlite") => "there is no server",
        ("clock-forward" | "clock-back", "sqlite") => "there is no server",
        ("clock-forward" | "clock-back", _) => "the clock of this server cannot be shifted",
        ("leader-lost", _) => "its servers have no leader",
        ("eviction", _) => "its server does not evict data",
        ("herd", _) => "there is no server that could count requests",
        ("wakeup-lost", "sqlite") => "there is no network between it and its store",
        ("wakeup-lost", _) => "its waiters are not woken: they poll",
        (_, "sqlite") => "there is no network between it and its store",
        _ => "it cannot happen to this lock",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::SCENARIOS;
    use crate::verdict::Expected;

    #[test]
    fn every_cell_is_there_and_names_verdicts() {
        for scenario in SCENARIOS {
            for lock in LOCKS {
                let cell_name = format!("{} on {}", scenario.name, lock.name);
                match scenario.expected(lock) {
                    Ok(cell) => assert!(cell.parse::<Expected>().is_ok(), "{cell_name}: {cell}"),
                    Err(why) => assert!(!why.contains("table"), "{cell_name}: {why}"),
                }
            }
        }
        let rows = TABLE.lines().filter(|line| !line.is_empty());
        assert_eq!(rows.count(), SCENARIOS.len());
    }
}
