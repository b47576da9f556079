//! Health checks for `tenure doctor`: the leader, the servers, the agent's mode and the rights of
//! the token.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

use super::Context;
use super::connection::api::{Api, TxnOp, TxnOutcome};
use super::layout::{KeyRole, LockKeys, role};
use super::snapshot::KeySnapshot;
use crate::error::Result;
use crate::finding::{Finding, Severity};

/// How many locks are read to see who holds them.
const CHECKED_KEYS_MAX: usize = 20;

pub(super) async fn doctor(context: &Context) -> Result<Vec<Finding>> {
    let api = &context.api;
    let mut findings = vec![check_leader(api).await?];
    let agent = api.get_json("/v1/agent/self").await;
    findings.extend(check_peers(api).await);
    findings.extend(check_agent(agent.as_ref().ok()));
    findings.push(check_session_rights(api, context.min_ttl).await);
    findings.push(check_key_rights(api).await);
    findings.push(describe_lock_delay(context.lock_delay));
    findings.extend(check_readers(api).await);
    Ok(findings)
}

/// The shortest ttl that the agent's own configuration allows, if it is a server.
pub(super) fn min_ttl(agent: &Value) -> Option<Duration> {
    let min = agent["DebugConfig"]["SessionTTLMin"].as_str()?;
    let min = crate::duration(min).ok().filter(|min| !min.is_zero())?;
    (agent["Config"]["Server"] == true).then_some(min)
}

async fn check_leader(api: &Api) -> Result<Finding> {
    let leader = api.get_json("/v1/status/leader").await?;
    Ok(match leader.as_str() {
        Some(leader) if !leader.is_empty() => Finding::good("leader", leader),
        _ => Finding::new(Severity::Fault, "leader", "there is none, so nothing can be locked")
            .advise("read the servers' logs"),
    })
}

async fn check_peers(api: &Api) -> Option<Finding> {
    let peers = api.get_json("/v1/status/peers").await.ok()?;
    let count = peers.as_array()?.len();
    Some(match count {
        0 | 1 => {
            let detail = "one server: while it is down nothing can be locked or renewed";
            Finding::new(Severity::Warning, "servers", detail).advise("run three or five")
        }
        _ => Finding::good("servers", format!("{count}, of which a majority decides")),
    })
}

/// What the agent says about itself; `None` if it may not be read.
fn check_agent(agent: Option<&Value>) -> Vec<Finding> {
    let Some(agent) = agent else {
        let detail = "not known: the token may not read the agent";
        return vec![
            Finding::new(Severity::Notice, "version", detail)
                .advise("give it `agent_prefix \"\" { policy = \"read\" }` to see more here"),
        ];
    };
    let version = agent["Config"]["Version"].as_str().unwrap_or("unknown");
    let mut findings = vec![Finding::good("version", version)];
    if agent["DebugConfig"]["DevMode"] == true {
        let detail = "development mode: a restart forgets every lock, and tokens start again";
        findings.push(
            Finding::new(Severity::Warning, "persistence", detail)
                .advise("run servers with a data_dir"),
        );
    }
    if agent["DebugConfig"]["ACLsEnabled"] == false {
        let detail = "off: every client that reaches Consul can overwrite or delete a lock's key";
        findings
            .push(Finding::new(Severity::Notice, "access rules", detail).advise("turn ACLs on"));
    }
    findings
}

/// Creates a session and ends it again.
async fn check_session_rights(api: &Api, min_ttl: Duration) -> Finding {
    match api.create_session("tenure doctor", min_ttl, Duration::ZERO).await {
        Ok(id) => {
            // If this fails, the session ends with its ttl.
            let _ignored = api.destroy_session(&id).await;
            let detail = format!("can be created, with a ttl of {min_ttl:?} or more");
            Finding::good("sessions", detail)
        }
        Err(error) => Finding::new(Severity::Fault, "sessions", error.to_string())
            .advise("give the token `session_prefix \"\" { policy = \"write\" }`"),
    }
}

/// Writes a key and deletes it again.
async fn check_key_rights(api: &Api) -> Finding {
    let key = format!("tenure-doctor-{}/.lock", Uuid::new_v4());
    let ops = [TxnOp::Set(key.clone(), "probe".to_owned()), TxnOp::Delete(key)];
    match api.transact(&ops).await {
        Ok(TxnOutcome::Committed(_)) => Finding::good("keys", "can be written"),
        Ok(TxnOutcome::Refused(_)) => {
            Finding::new(Severity::Warning, "keys", "writing a new key was refused")
                .advise("read the servers' logs")
        }
        Err(error) => Finding::new(Severity::Warning, "keys", error.to_string())
            .advise("give the token `key_prefix` with `policy = \"write\"` for your locks"),
    }
}

/// Finds locks that a client holds which does not know of readers, beside some. `None` if there are
/// none, or if keys cannot be listed.
async fn check_readers(api: &Api) -> Option<Finding> {
    let names = api.names("").await.ok()?;
    let shared: BTreeSet<_> = names
        .iter()
        .filter_map(|name| match role(name)? {
            KeyRole::Held(key, _) => Some(key),
            _ => None,
        })
        .collect();
    let locked = names.iter().filter_map(|name| match role(name)? {
        KeyRole::Lock(key) if shared.contains(&key) => Some(key),
        _ => None,
    });
    for key in locked.take(CHECKED_KEYS_MAX) {
        // One read at one moment: the names were not.
        let entries = api.read_tree(LockKeys::new(&key).tree()).await.ok()?;
        let snapshot = KeySnapshot::new(&key, entries);
        let is_locked = snapshot.lock.as_ref().is_some_and(|lock| lock.session.is_some());
        if is_locked && !snapshot.holders.is_empty() {
            let detail = format!("`{key}` is held exclusively and shared at the same time");
            let advice = "use such keys with tenure only: `consul lock` and Consul's own library \
                          do not see shared holders";
            return Some(Finding::new(Severity::Fault, "readers", detail).advise(advice));
        }
    }
    None
}

fn describe_lock_delay(lock_delay: Duration) -> Finding {
    let detail = match lock_delay {
        Duration::ZERO => "0s: a lock is free as soon as its session has ended".to_owned(),
        delay => format!("{delay:?}: a lock stays locked for so long after its session has ended"),
    };
    let detail =
        format!("{detail}; Consul ends the session of a crashed client within twice its ttl");
    Finding::good("lock-delay", detail)
}
