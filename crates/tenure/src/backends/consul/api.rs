//! The requests that locks are made of: sessions, transactions and reads, with their answers taken
//! apart.

use std::time::Duration;

use serde_json::{Value, json};

use super::base64;
use super::http::{Answer, Http};
use crate::error::{Error, ErrorKind, Result};

/// One key, as it was read.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: String,
    /// The session that holds it.
    pub(super) session: Option<String>,
    pub(super) flags: u64,
    pub(super) created: u64,
    /// The entry in the log of the cluster that wrote it last. Grows with every write of any key,
    /// whether keys are deleted or not.
    pub(super) modified: u64,
}

/// A step of a transaction.
#[derive(Clone, Debug)]
pub(super) enum Op {
    CheckAbsent(String),
    CheckIndex(String, u64),
    Delete(String),
    Get(String),
    Lock { key: String, session: String, flags: u64, value: String },
    Set(String, String),
    Tree(String),
}

/// What became of a transaction: all of it, or nothing.
#[derive(Debug)]
pub(super) enum Txn {
    Done(Vec<Entry>),
    Refused(Vec<Refusal>),
}

/// Why a step was refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    /// The number of the step.
    pub(super) op: usize,
    pub(super) why: Why,
}

/// The meanings of one status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// What was checked is not so, or the key is locked.
    Check,
    /// The key was held by a session that was ended, and is kept for a while.
    LockDelay,
    /// The session is gone.
    Session,
}

/// A read that waits for a change.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) entry: Option<Entry>,
    pub(super) index: u64,
}

/// A session, as the server tells it.
#[derive(Clone, Debug)]
pub(super) struct SessionInfo {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) node: String,
    pub(super) ttl: Option<Duration>,
}

/// Consul's own verbs.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) http: Http,
    /// The node of the catalog that sessions belong to, if not the agent's own.
    pub(super) node: Option<String>,
}

impl Api {
    /// All steps, or none.
    pub(super) async fn transact(&self, ops: &[Op]) -> Result<Txn> {
        let body = Value::Array(ops.iter().map(Op::to_json).collect()).to_string();
        let answer = self.http.put("/v1/txn", "consistent", body).await?;
        match answer.status {
            200 => {
                let body = parse(&answer)?;
                let results = body["Results"].as_array().map(Vec::as_slice).unwrap_or_default();
                Ok(Txn::Done(results.iter().filter_map(|result| entry(&result["KV"])).collect()))
            }
            409 => refusals(&parse(&answer)?).map(Txn::Refused),
            _ => Err(from_answer(&answer)),
        }
    }

    /// One key, as the majority knows it.
    pub(super) async fn read(&self, key: &str) -> Result<Option<Entry>> {
        let answer = self.http.get(&format!("/v1/kv/{key}"), "consistent").await?;
        Ok(entries(&answer)?.pop())
    }

    /// All keys that begin so, as the majority knows them.
    pub(super) async fn read_all(&self, prefix: &str) -> Result<Vec<Entry>> {
        let answer = self.http.get(&format!("/v1/kv/{prefix}"), "recurse&consistent").await?;
        entries(&answer)
    }

    /// All keys of one lock. By a transaction, because their common beginning is no path that an
    /// HTTP server leaves as it is.
    pub(super) async fn read_tree(&self, prefix: String) -> Result<Vec<Entry>> {
        match self.transact(&[Op::Tree(prefix)]).await? {
            Txn::Done(entries) => Ok(entries),
            Txn::Refused(_) => Err(odd("a refusal to read")),
        }
    }

    /// One key, once it has changed since `index`; at once if that is 0.
    pub(super) async fn watch(&self, key: &str, index: u64, wait: Duration) -> Result<Seen> {
        let query = match index {
            0 => "consistent".to_owned(),
            index => format!("consistent&index={index}"),
        };
        let answer = self.http.wait(&format!("/v1/kv/{key}"), &query, wait).await?;
        let entry = entries(&answer)?.pop();
        // An index that went back means another history: begin anew. One below 1 would not wait.
        let index = if answer.index < index { 0 } else { answer.index.max(1) };
        Ok(Seen { entry, index })
    }

    /// Makes a session that no health check is tied to: it ends by its ttl, or with its node.
    pub(super) async fn create_session(
        &self,
        name: &str,
        ttl: Duration,
        lock_delay: Duration,
    ) -> Result<String> {
        let mut body = json!({
            "Name": name,
            "TTL": format!("{}ms", ttl.as_millis()),
            "LockDelay": format!("{}ms", lock_delay.as_millis()),
            // With `release` a dead client's keys would stay, and with them the names of its locks.
            "Behavior": "delete",
            "Checks": [],
            "NodeChecks": [],
        });
        if let Some(node) = &self.node {
            body["Node"] = json!(node);
        }
        let answer = self.http.put("/v1/session/create", "", body.to_string()).await?;
        let body = parse(&expect(answer)?)?;
        let id = body["ID"].as_str().map(str::to_owned);
        id.ok_or_else(|| odd("a session without an id"))
    }

    /// `false` if the session is gone.
    pub(super) async fn renew_session(&self, id: &str) -> Result<bool> {
        let answer = self.http.put(&format!("/v1/session/renew/{id}"), "", String::new()).await?;
        match answer.status {
            404 => Ok(false),
            _ => expect(answer).map(|_| true),
        }
    }

    pub(super) async fn destroy_session(&self, id: &str) -> Result<()> {
        let path = format!("/v1/session/destroy/{id}");
        expect(self.http.put(&path, "", String::new()).await?).map(drop)
    }

    pub(super) async fn sessions(&self) -> Result<Vec<SessionInfo>> {
        let body = self.ask("/v1/session/list").await?;
        let sessions = body.as_array().map(Vec::as_slice).unwrap_or_default();
        let text = |session: &Value, field| session[field].as_str().unwrap_or("").to_owned();
        let sessions = sessions.iter().map(|session| SessionInfo {
            id: text(session, "ID"),
            name: text(session, "Name"),
            node: text(session, "Node"),
            ttl: crate::duration(&text(session, "TTL")).ok(),
        });
        Ok(sessions.collect())
    }

    /// Something else, as JSON.
    pub(super) async fn ask(&self, path: &str) -> Result<Value> {
        parse(&expect(self.http.get(path, "").await?)?)
    }
}

impl Op {
    fn to_json(&self) -> Value {
        let step = match self {
            Op::CheckAbsent(key) => json!({"Verb": "check-not-exists", "Key": key}),
            Op::CheckIndex(key, index) => {
                json!({"Verb": "check-index", "Key": key, "Index": index})
            }
            Op::Delete(key) => json!({"Verb": "delete", "Key": key}),
            Op::Get(key) => json!({"Verb": "get", "Key": key}),
            Op::Lock { key, session, flags, value } => json!({
                "Verb": "lock",
                "Key": key,
                "Session": session,
                "Flags": flags,
                "Value": base64::encode(value.as_bytes()),
            }),
            Op::Set(key, value) => {
                json!({"Verb": "set", "Key": key, "Value": base64::encode(value.as_bytes())})
            }
            Op::Tree(key) => json!({"Verb": "get-tree", "Key": key}),
        };
        json!({ "KV": step })
    }
}

fn refusals(body: &Value) -> Result<Vec<Refusal>> {
    let errors = body["Errors"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut refusals = Vec::new();
    for error in errors {
        let what = error["What"].as_str().unwrap_or_default();
        let why = match what {
            _ if what.contains("ermission denied") => return Err(denied(what)),
            _ if what.contains("invalid session") => Why::Session,
            _ if what.contains("lock delay") => Why::LockDelay,
            _ => Why::Check,
        };
        let op = error["OpIndex"].as_u64().and_then(|op| usize::try_from(op).ok()).unwrap_or(0);
        refusals.push(Refusal { op, why });
    }
    Ok(refusals)
}

fn entries(answer: &Answer) -> Result<Vec<Entry>> {
    match answer.status {
        200 => {
            let body = parse(answer)?;
            let entries = body.as_array().map(Vec::as_slice).unwrap_or_default();
            Ok(entries.iter().filter_map(entry).collect())
        }
        404 => Ok(Vec::new()),
        _ => Err(from_answer(answer)),
    }
}

fn entry(json: &Value) -> Option<Entry> {
    let value = json["Value"].as_str().and_then(base64::decode).unwrap_or_default();
    Some(Entry {
        key: json["Key"].as_str()?.to_owned(),
        value: String::from_utf8_lossy(&value).into_owned(),
        session: json["Session"].as_str().filter(|id| !id.is_empty()).map(str::to_owned),
        flags: json["Flags"].as_u64().unwrap_or(0),
        created: json["CreateIndex"].as_u64()?,
        modified: json["ModifyIndex"].as_u64()?,
    })
}

fn expect(answer: Answer) -> Result<Answer> {
    if answer.status == 200 { Ok(answer) } else { Err(from_answer(&answer)) }
}

fn parse(answer: &Answer) -> Result<Value> {
    serde_json::from_slice(&answer.body).map_err(|error| odd("no JSON").with_source(error))
}

fn odd(what: &str) -> Error {
    let message = format!("consul answered with {what}; is it Consul that listens there?");
    Error::new(ErrorKind::Invalid, message)
}

fn denied(what: &str) -> Error {
    let message = format!("consul: {what}; the token needs key and session rights to write");
    Error::new(ErrorKind::Denied, message)
}

/// What a status other than the expected one means. A leader that changes answers 500 for a while:
/// that is doubt.
fn from_answer(answer: &Answer) -> Error {
    let text = String::from_utf8_lossy(&answer.body);
    let text: String = text.trim().chars().take(200).collect();
    match answer.status {
        401 | 403 => denied(&text),
        _ if text.contains("ermission denied") || text.contains("ACL not found") => denied(&text),
        _ if text.contains("Session TTL") => {
            let advice = "ask for a longer ttl, or set `session_ttl_min` on the servers";
            Error::new(ErrorKind::Invalid, format!("consul: {text}; {advice}"))
        }
        429 | 500.. => {
            let message = format!("consul cannot answer now: {text} (status {})", answer.status);
            Error::new(ErrorKind::Unavailable, message)
        }
        status => odd(&format!("status {status}: {text}")),
    }
}
