//! What operators should know about a server before it does harm.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::Value;

use super::Redis;
use super::config::{Config, Topology};
use super::connection::Connection;
use super::error::from_redis;
use super::layout::Keys;
use crate::error::{ErrorKind, Result};
use crate::finding::{Finding, Severity};

/// A clock that is off by more is worth a warning.
const CLOCK_OFF: Duration = Duration::from_secs(2);

pub(super) async fn doctor(redis: &Redis) -> Result<Vec<Finding>> {
    let mut findings = vec![scripts(redis).await?, wakeups(redis)];
    let masters = redis.servers.each_master().await?;
    let several = masters.len() > 1;
    for (address, connection) in masters {
        let connection = match connection {
            Ok(connection) => connection,
            Err(error) => {
                let subject = format!("master at {address}");
                let finding = Finding::new(Severity::Fault, subject, error.to_string());
                findings.push(finding.advise("start it, or let a replica take over"));
                continue;
            }
        };
        let info = ServerInfo::read(&connection).await?;
        let mut found = vec![
            version(&info),
            eviction(&info),
            headroom(&info),
            persistence(&info),
            replication(&redis.config, &info),
        ];
        found.extend(clock(&connection).await?);
        if several {
            let port = info.get("tcp_port");
            found.iter_mut().for_each(|f| f.subject = format!("{} on port {port}", f.subject));
        }
        findings.extend(found);
    }
    Ok(findings)
}

async fn scripts(redis: &Redis) -> Result<Finding> {
    let keys = Keys::of("tenure:probe");
    match redis.servers.run(keys.lock, &redis.scripts.show(keys)).await {
        Ok(_) => Ok(Finding::good("scripts", "may be run")),
        Err(error) if error.kind() == ErrorKind::Denied => {
            let detail = "may not be run, or not on keys that begin with `tenure:`";
            let advice = "grant +eval, +evalsha, the commands in them, and ~tenure:*";
            Ok(Finding::new(Severity::Fault, "scripts", detail).advise(advice))
        }
        Err(error) => Err(error),
    }
}

fn wakeups(redis: &Redis) -> Finding {
    if !redis.polls.load(Ordering::Relaxed) {
        return Finding::good("wake-up", "the server pushes");
    }
    let detail =
        "this client may not subscribe, or the server or a proxy speaks no RESP3; waiters poll";
    let advice = "grant +subscribe, +publish, &tenure:* and &redisson_lock__channel:*";
    Finding::new(Severity::Notice, "wake-up", detail).advise(advice)
}

fn replication(config: &Config, info: &ServerInfo) -> Finding {
    let subject = "replicas";
    let wanted = config.replicas;
    let have: u32 = info.get("connected_slaves").parse().unwrap_or(0);
    let detail = format!("{have} follow");
    if have < wanted {
        let detail = format!("{detail}, and `replicas={wanted}` wants more: nothing is granted");
        let advice = "start more replicas, or lower `replicas`";
        return Finding::new(Severity::Fault, subject, detail).advise(advice);
    }
    let single = matches!(config.topology, Topology::Single(_));
    match (have, wanted) {
        (0, _) if single => Finding::good(subject, "none, and none are wanted"),
        (0, _) => Finding::new(Severity::Warning, subject, "none: no server can take over")
            .advise("add a replica"),
        (_, 0) => {
            let detail = format!("{detail}; a failover may lose the last grants");
            Finding::new(Severity::Notice, subject, detail).advise("say `replicas=1` in the URL")
        }
        _ => Finding::good(subject, detail),
    }
}

/// The response to `INFO`, by field.
struct ServerInfo(HashMap<String, String>);

impl ServerInfo {
    async fn read(connection: &Connection) -> Result<ServerInfo> {
        let response = connection.execute(&redis::cmd("INFO")).await;
        let text = match response.map_err(|error| from_redis(error, "redis"))? {
            Value::VerbatimString { text, .. } => text,
            other => redis::from_redis_value(other).unwrap_or_default(),
        };
        let field = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_owned(), value.trim().to_owned()))
        };
        Ok(ServerInfo(text.lines().filter_map(field).collect()))
    }

    /// The value of a field; empty if there is none.
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
}

fn version(info: &ServerInfo) -> Finding {
    let valkey = info.get("valkey_version");
    if !valkey.is_empty() {
        return Finding::good("version", format!("Valkey {valkey}"));
    }
    let version = info.get("redis_version");
    let major: u32 = version.split('.').next().and_then(|m| m.parse().ok()).unwrap_or(0);
    if major >= 6 {
        return Finding::good("version", format!("Redis {version}"));
    }
    let detail = format!("Redis {version}: older than what is tested");
    Finding::new(Severity::Warning, "version", detail).advise("use Redis 7 or newer, or Valkey")
}

fn eviction(info: &ServerInfo) -> Finding {
    let policy = info.get("maxmemory_policy");
    let limit = info.get("maxmemory");
    if policy == "noeviction" || policy.is_empty() {
        return Finding::good("eviction", "none");
    }
    let advice = "set maxmemory-policy to noeviction, or give locks a server of their own";
    if limit == "0" {
        let detail = format!("`{policy}`, but no maxmemory is set");
        return Finding::new(Severity::Notice, "eviction", detail).advise(advice);
    }
    let detail = format!("`{policy}`: a full server deletes locks, and a second holder is let in");
    Finding::new(Severity::Fault, "eviction", detail).advise(advice)
}

fn headroom(info: &ServerInfo) -> Finding {
    let number = |name: &str| info.get(name).parse::<u64>().unwrap_or(0);
    let used = number("used_memory");
    let limit = number("maxmemory");
    if limit == 0 {
        return Finding::good("memory", format!("{} MB used, without a limit", used / 1_000_000));
    }
    let percent = used.saturating_mul(100) / limit;
    let detail = format!("{percent} % of maxmemory are used");
    if percent < 90 {
        return Finding::good("memory", detail);
    }
    let detail = format!("{detail}; a full server grants no locks");
    Finding::new(Severity::Warning, "memory", detail).advise("make room, or raise maxmemory")
}

fn persistence(info: &ServerInfo) -> Finding {
    if info.get("aof_enabled") == "1" {
        return Finding::good("persistence", "the append-only file is on");
    }
    let detail = "no append-only file: a crash forgets locks that are held, and lets others in";
    Finding::new(Severity::Warning, "persistence", detail).advise("set appendonly to yes")
}

/// Leases run on the server's clock and this client's, which need not agree; but a clock that is
/// far off is likely to be set right while locks are held.
async fn clock(connection: &Connection) -> Result<Option<Finding>> {
    let response = connection.execute(&redis::cmd("TIME")).await;
    let response = response.map_err(|error| from_redis(error, "redis"))?;
    let Ok((seconds, micros)) = redis::from_redis_value::<(u64, u64)>(response) else {
        return Ok(None);
    };
    let server = Duration::from_secs(seconds) + Duration::from_micros(micros);
    let local = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let off = server.abs_diff(local);
    let detail = format!("{} ms from this client's", off.as_millis());
    if off < CLOCK_OFF {
        return Ok(Some(Finding::good("clock", detail)));
    }
    let detail = format!("{detail}: when it is set right, leases end early or late");
    Ok(Some(Finding::new(Severity::Warning, "clock", detail).advise("let NTP set both clocks")))
}
