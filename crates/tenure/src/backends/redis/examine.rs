//! What people should know about a server before it bites.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::Value;

use super::names::Names;
use super::settings::Place;
use super::wire::Wire;
use super::{Redis, from_redis};
use crate::error::{ErrorKind, Result};
use crate::finding::{Finding, Grade};

impl Redis {
    pub(super) async fn examined(&self) -> Result<Vec<Finding>> {
        let mut findings = vec![self.scripts_allowed().await?, self.messages()];
        let masters = self.servers.each_master().await?;
        let several = masters.len() > 1;
        for (address, wire) in masters {
            let wire = match wire {
                Ok(wire) => wire,
                Err(error) => {
                    let subject = format!("master at {address}");
                    let finding = Finding::new(Grade::Fault, subject, error.to_string());
                    findings.push(finding.advise("start it, or let a replica take over"));
                    continue;
                }
            };
            let facts = facts(&wire).await?;
            let mut found = vec![
                version(&facts),
                eviction(&facts),
                headroom(&facts),
                persistence(&facts),
                self.replication(&facts),
            ];
            found.extend(clock(&wire).await?);
            if several {
                let port = of(&facts, "tcp_port");
                found.iter_mut().for_each(|f| f.subject = format!("{} on port {port}", f.subject));
            }
            findings.extend(found);
        }
        Ok(findings)
    }

    async fn scripts_allowed(&self) -> Result<Finding> {
        let names = Names::of("tenure:probe");
        match self.servers.ask(&names.lock, &self.show(&names)).await {
            Ok(_) => Ok(Finding::good("scripts", "may be run")),
            Err(error) if error.kind() == ErrorKind::Denied => {
                let detail = "may not be run, or not on keys that begin with `tenure:`";
                let advice = "grant +eval, +evalsha, the commands in them, and ~tenure:*";
                Ok(Finding::new(Grade::Fault, "scripts", detail).advise(advice))
            }
            Err(error) => Err(error),
        }
    }

    fn messages(&self) -> Finding {
        if !self.polls.load(Ordering::Relaxed) {
            return Finding::good("wake-up", "the server pushes");
        }
        let detail = "we may not subscribe, or the server or a proxy speaks no RESP3; waiters poll";
        let advice = "grant +subscribe, +publish, &tenure:* and &redisson_lock__channel:*";
        Finding::new(Grade::Notice, "wake-up", detail).advise(advice)
    }

    fn replication(&self, facts: &Facts) -> Finding {
        let (subject, wanted) = ("replicas", self.settings.replicas);
        let have: u32 = of(facts, "connected_slaves").parse().unwrap_or(0);
        let detail = format!("{have} follow");
        if have < wanted {
            let detail =
                format!("{detail}, and `replicas={wanted}` wants more: nothing is granted");
            let advice = "start more replicas, or lower `replicas`";
            return Finding::new(Grade::Fault, subject, detail).advise(advice);
        }
        let single = matches!(self.settings.place, Place::One(_));
        match (have, wanted) {
            (0, _) if single => Finding::good(subject, "none, and none are asked for"),
            (0, _) => Finding::new(Grade::Warning, subject, "none: nobody can take over")
                .advise("add a replica"),
            (_, 0) => {
                let detail = format!("{detail}; a failover may lose the last grants");
                Finding::new(Grade::Notice, subject, detail).advise("say `replicas=1` in the URL")
            }
            _ => Finding::good(subject, detail),
        }
    }
}

/// What `INFO` tells.
type Facts = HashMap<String, String>;

fn of<'a>(facts: &'a Facts, name: &str) -> &'a str {
    facts.get(name).map_or("", String::as_str)
}

async fn facts(wire: &Wire) -> Result<Facts> {
    let answer = wire.ask(&redis::cmd("INFO")).await.map_err(|error| from_redis(error, "redis"))?;
    let text = match answer {
        Value::VerbatimString { text, .. } => text,
        other => redis::from_redis_value(other).unwrap_or_default(),
    };
    let fact = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim().to_owned()))
    };
    Ok(text.lines().filter_map(fact).collect())
}

fn version(facts: &Facts) -> Finding {
    let valkey = of(facts, "valkey_version");
    if !valkey.is_empty() {
        return Finding::good("version", format!("Valkey {valkey}"));
    }
    let version = of(facts, "redis_version");
    let major: u32 = version.split('.').next().and_then(|m| m.parse().ok()).unwrap_or(0);
    if major >= 6 {
        return Finding::good("version", format!("Redis {version}"));
    }
    let detail = format!("Redis {version}: older than what is tested");
    Finding::new(Grade::Warning, "version", detail).advise("use Redis 7 or newer, or Valkey")
}

fn eviction(facts: &Facts) -> Finding {
    let (policy, limit) = (of(facts, "maxmemory_policy"), of(facts, "maxmemory"));
    if policy == "noeviction" || policy.is_empty() {
        return Finding::good("eviction", "none");
    }
    let advice = "set maxmemory-policy to noeviction, or give locks a server of their own";
    if limit == "0" {
        let detail = format!("`{policy}`, but no maxmemory is set");
        return Finding::new(Grade::Notice, "eviction", detail).advise(advice);
    }
    let detail = format!("`{policy}`: a full server deletes locks, and a second holder is let in");
    Finding::new(Grade::Fault, "eviction", detail).advise(advice)
}

fn headroom(facts: &Facts) -> Finding {
    let number = |name: &str| of(facts, name).parse::<u64>().unwrap_or(0);
    let (used, limit) = (number("used_memory"), number("maxmemory"));
    if limit == 0 {
        return Finding::good("memory", format!("{} MB used, without a limit", used / 1_000_000));
    }
    let percent = used.saturating_mul(100) / limit;
    let detail = format!("{percent} % of maxmemory are used");
    if percent < 90 {
        return Finding::good("memory", detail);
    }
    let detail = format!("{detail}; a full server grants no locks");
    Finding::new(Grade::Warning, "memory", detail).advise("make room, or raise maxmemory")
}

fn persistence(facts: &Facts) -> Finding {
    if of(facts, "aof_enabled") == "1" {
        return Finding::good("persistence", "the append-only file is on");
    }
    let detail = "no append-only file: a crash forgets locks that are held, and lets others in";
    Finding::new(Grade::Warning, "persistence", detail).advise("set appendonly to yes")
}

/// Leases run on the server's clock and ours, which need not agree; but a clock that is far off is
/// likely to be set right while locks are held.
async fn clock(wire: &Wire) -> Result<Option<Finding>> {
    let answer = wire.ask(&redis::cmd("TIME")).await.map_err(|error| from_redis(error, "redis"))?;
    let Ok((seconds, micros)) = redis::from_redis_value::<(u64, u64)>(answer) else {
        return Ok(None);
    };
    let server = Duration::from_secs(seconds) + Duration::from_micros(micros);
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let off = server.abs_diff(ours);
    let detail = format!("{} ms from ours", off.as_millis());
    if off < CLOCK_OFF {
        return Ok(Some(Finding::good("clock", detail)));
    }
    let detail = format!("{detail}: when it is set right, leases end early or late");
    Ok(Some(Finding::new(Grade::Warning, "clock", detail).advise("let NTP set both clocks")))
}

const CLOCK_OFF: Duration = Duration::from_secs(2);
