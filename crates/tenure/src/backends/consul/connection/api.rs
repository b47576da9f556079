//! The requests of Consul's HTTP API that locks are made of: sessions, transactions and reads.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::error;
use super::base64;
use super::http::{HttpClient, HttpResponse};
use crate::error::Result;

/// One key of Consul's key-value store, as it was read.
#[derive(Clone, Debug)]
pub(crate) struct KvEntry {
    pub(crate) key: String,
    pub(crate) value: String,
    /// The session that holds the key.
    pub(crate) session: Option<String>,
    pub(crate) flags: u64,
    /// The index in the cluster's log of the write that created the key.
    pub(crate) created: u64,
    /// The index in the cluster's log of the last write of the key. Indexes grow with every write
    /// of any key, also when keys are deleted and created again.
    pub(crate) modified: u64,
}

/// One operation of a transaction.
#[derive(Clone, Debug)]
pub(crate) enum TxnOp {
    CheckAbsent(String),
    CheckIndex(String, u64),
    Delete(String),
    Get(String),
    Lock { key: String, session: String, flags: u64, value: String },
    Set(String, String),
    Tree(String),
}

/// The outcome of a transaction: all operations were applied, or none.
#[derive(Debug)]
pub(crate) enum TxnOutcome {
    /// The entries that the operations wrote or read, in their order.
    Committed(Vec<KvEntry>),
    Refused(Vec<Refusal>),
}

/// An operation that failed, and with it the transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    /// The position of the operation in the transaction.
    pub(crate) op: usize,
    pub(crate) reason: RefusalReason,
}

/// The meanings of status 409, which Consul tells apart only by a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    /// A check failed, or another session holds the key.
    CheckFailed,
    /// The session that held the key was ended, and Consul keeps the key locked for a while.
    LockDelay,
    /// The session does not exist any more.
    SessionGone,
}

/// The result of a blocking query: the key, and the index to continue from.
#[derive(Debug)]
pub(crate) struct WatchResult {
    pub(crate) entry: Option<KvEntry>,
    pub(crate) index: u64,
}

/// The result of a blocking query for all keys with a prefix.
#[derive(Debug)]
pub(crate) struct TreeWatchResult {
    pub(crate) entries: Vec<KvEntry>,
    pub(crate) index: u64,
}

/// A session, as the server describes it.
#[derive(Clone, Debug)]
pub(crate) struct SessionInfo {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) ttl: Option<Duration>,
}

/// Consul's HTTP API.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) http: HttpClient,
    /// The node of the catalog that sessions belong to; `None` for the agent's own.
    pub(crate) node: Option<String>,
}

impl Api {
    /// Applies all operations, or none.
    pub(crate) async fn transact(&self, ops: &[TxnOp]) -> Result<TxnOutcome> {
        let body = Value::Array(ops.iter().map(TxnOp::to_json).collect()).to_string();
        let response = self.http.put("/v1/txn", "consistent", body).await?;
        match response.status {
            200 => {
                let body = parse(&response)?;
                let results = body["Results"].as_array().map(Vec::as_slice).unwrap_or_default();
                let entries = results.iter().filter_map(|result| entry(&result["KV"]));
                Ok(TxnOutcome::Committed(entries.collect()))
            }
            409 => refusals(&parse(&response)?).map(TxnOutcome::Refused),
            _ => Err(error::from_response(&response)),
        }
    }

    /// Reads one key as the majority knows it.
    pub(crate) async fn read(&self, key: &str) -> Result<Option<KvEntry>> {
        let response = self.http.get(&format!("/v1/kv/{key}"), "consistent").await?;
        Ok(entries(&response)?.pop())
    }

    /// Reads all keys with a prefix as the majority knows them.
    pub(crate) async fn read_all(&self, prefix: &str) -> Result<Vec<KvEntry>> {
        let response = self.http.get(&format!("/v1/kv/{prefix}"), "recurse&consistent").await?;
        entries(&response)
    }

    /// Reads all keys of one lock. It is a transaction, because their common prefix ends in `/.`,
    /// which an HTTP server would resolve if it stood in a path.
    pub(crate) async fn read_tree(&self, prefix: String) -> Result<Vec<KvEntry>> {
        match self.transact(&[TxnOp::Tree(prefix)]).await? {
            TxnOutcome::Committed(entries) => Ok(entries),
            TxnOutcome::Refused(_) => Err(error::unexpected("a refusal to read")),
        }
    }

    /// Reads one key when it has changed since `index`, or at once if that is 0.
    pub(crate) async fn watch(&self, key: &str, index: u64, wait: Duration) -> Result<WatchResult> {
        let (mut entries, index) = self.wait_for(key, "consistent", index, wait).await?;
        Ok(WatchResult { entry: entries.pop(), index })
    }

    /// Reads all keys with a prefix when one of them has changed or was deleted since `index`, or
    /// at once if that is 0.
    pub(crate) async fn watch_all(
        &self,
        prefix: &str,
        index: u64,
        wait: Duration,
    ) -> Result<TreeWatchResult> {
        let (entries, index) = self.wait_for(prefix, "recurse&consistent", index, wait).await?;
        Ok(TreeWatchResult { entries, index })
    }

    async fn wait_for(
        &self,
        key: &str,
        query: &str,
        index: u64,
        wait: Duration,
    ) -> Result<(Vec<KvEntry>, u64)> {
        let query = match index {
            0 => query.to_owned(),
            index => format!("{query}&index={index}"),
        };
        let response = self.http.wait(&format!("/v1/kv/{key}"), &query, wait).await?;
        let entries = entries(&response)?;
        // An index that went back belongs to another history, as after a restored snapshot: start
        // again from 0. A query with an index below 1 would not block.
        let index = if response.index < index { 0 } else { response.index.max(1) };
        Ok((entries, index))
    }

    /// The names of all keys with a prefix.
    pub(crate) async fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let response = self.http.get(&format!("/v1/kv/{prefix}"), "keys").await?;
        if response.status == 404 {
            return Ok(Vec::new());
        }
        let body = parse(&expect_ok(response)?)?;
        let names = body.as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect())
    }

    /// Creates a session without health checks: it ends with its ttl, or with its node.
    pub(crate) async fn create_session(
        &self,
        name: &str,
        ttl: Duration,
        lock_delay: Duration,
    ) -> Result<String> {
        let mut body = json!({
            "Name": name,
            "TTL": format!("{}ms", ttl.as_millis()),
            "LockDelay": format!("{}ms", lock_delay.as_millis()),
            // With `release`, the keys of a crashed client would stay, without a session.
            "Behavior": "delete",
            "Checks": [],
            "NodeChecks": [],
        });
        if let Some(node) = &self.node {
            body["Node"] = json!(node);
        }
        let response = self.http.put("/v1/session/create", "", body.to_string()).await?;
        let body = parse(&expect_ok(response)?)?;
        let id = body["ID"].as_str().map(str::to_owned);
        id.ok_or_else(|| error::unexpected("a session without an id"))
    }

    /// Renews a session. `false` if it does not exist any more.
    pub(crate) async fn renew_session(&self, id: &str) -> Result<bool> {
        let response = self.http.put(&format!("/v1/session/renew/{id}"), "", String::new()).await?;
        match response.status {
            404 => Ok(false),
            _ => expect_ok(response).map(|_| true),
        }
    }

    /// Ends a session, and with it every key that it holds.
    pub(crate) async fn destroy_session(&self, id: &str) -> Result<()> {
        let path = format!("/v1/session/destroy/{id}");
        expect_ok(self.http.put(&path, "", String::new()).await?).map(drop)
    }

    /// All sessions of the datacenter.
    pub(crate) async fn sessions(&self) -> Result<Vec<SessionInfo>> {
        let body = self.get_json("/v1/session/list").await?;
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

    /// Reads any other endpoint as JSON.
    pub(crate) async fn get_json(&self, path: &str) -> Result<Value> {
        parse(&expect_ok(self.http.get(path, "").await?)?)
    }
}

impl TxnOp {
    /// The key, or the prefix of the keys, that it is about.
    fn key(&self) -> &str {
        match self {
            TxnOp::CheckAbsent(key)
            | TxnOp::CheckIndex(key, _)
            | TxnOp::Delete(key)
            | TxnOp::Get(key)
            | TxnOp::Lock { key, .. }
            | TxnOp::Set(key, _)
            | TxnOp::Tree(key) => key,
        }
    }

    fn to_json(&self) -> Value {
        let operation = match self {
            TxnOp::CheckAbsent(key) => json!({"Verb": "check-not-exists", "Key": key}),
            TxnOp::CheckIndex(key, index) => {
                json!({"Verb": "check-index", "Key": key, "Index": index})
            }
            TxnOp::Delete(key) => json!({"Verb": "delete", "Key": key}),
            TxnOp::Get(key) => json!({"Verb": "get", "Key": key}),
            TxnOp::Lock { key, session, flags, value } => json!({
                "Verb": "lock",
                "Key": key,
                "Session": session,
                "Flags": flags,
                "Value": base64::encode(value.as_bytes()),
            }),
            TxnOp::Set(key, value) => {
                json!({"Verb": "set", "Key": key, "Value": base64::encode(value.as_bytes())})
            }
            TxnOp::Tree(key) => json!({"Verb": "get-tree", "Key": key}),
        };
        json!({ "KV": operation })
    }
}

/// Whether one of the operations on this key failed.
pub(crate) fn is_refused(ops: &[TxnOp], refusals: &[Refusal], key: &str) -> bool {
    refusals.iter().any(|refusal| ops.get(refusal.op).is_some_and(|op| op.key() == key))
}

/// The reason that decides, of those why a transaction was refused: without a session no retry can
/// succeed.
pub(crate) fn decisive_reason(refusals: &[Refusal]) -> RefusalReason {
    let has = |reason| refusals.iter().any(|refusal| refusal.reason == reason);
    if has(RefusalReason::SessionGone) {
        RefusalReason::SessionGone
    } else if has(RefusalReason::LockDelay) && !has(RefusalReason::CheckFailed) {
        RefusalReason::LockDelay
    } else {
        RefusalReason::CheckFailed
    }
}

fn refusals(body: &Value) -> Result<Vec<Refusal>> {
    let errors = body["Errors"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut refusals = Vec::new();
    for failed in errors {
        let what = failed["What"].as_str().unwrap_or_default();
        let reason = match what {
            _ if what.contains("ermission denied") => return Err(error::denied(what)),
            _ if what.contains("invalid session") => RefusalReason::SessionGone,
            _ if what.contains("lock delay") => RefusalReason::LockDelay,
            _ => RefusalReason::CheckFailed,
        };
        let op = failed["OpIndex"].as_u64().and_then(|op| usize::try_from(op).ok()).unwrap_or(0);
        refusals.push(Refusal { op, reason });
    }
    Ok(refusals)
}

fn entries(response: &HttpResponse) -> Result<Vec<KvEntry>> {
    match response.status {
        200 => {
            let body = parse(response)?;
            let entries = body.as_array().map(Vec::as_slice).unwrap_or_default();
            Ok(entries.iter().filter_map(entry).collect())
        }
        404 => Ok(Vec::new()),
        _ => Err(error::from_response(response)),
    }
}

fn entry(json: &Value) -> Option<KvEntry> {
    let value = json["Value"].as_str().and_then(base64::decode).unwrap_or_default();
    Some(KvEntry {
        key: json["Key"].as_str()?.to_owned(),
        value: String::from_utf8_lossy(&value).into_owned(),
        session: json["Session"].as_str().filter(|id| !id.is_empty()).map(str::to_owned),
        flags: json["Flags"].as_u64().unwrap_or(0),
        created: json["CreateIndex"].as_u64()?,
        modified: json["ModifyIndex"].as_u64()?,
    })
}

fn expect_ok(response: HttpResponse) -> Result<HttpResponse> {
    if response.status == 200 { Ok(response) } else { Err(error::from_response(&response)) }
}

fn parse(response: &HttpResponse) -> Result<Value> {
    let not_json = |cause| error::unexpected("it is not JSON").with_source(cause);
    serde_json::from_slice(&response.body).map_err(not_json)
}
