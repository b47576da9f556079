//! In Consul: a transaction checks the session and the index of the lock's key.

use anyhow::{Context, Result, bail, ensure};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure::backends::{Consul, consul::Condition};
use tenure::{FencingToken, Key};
use tenure_servers::wire::http::json_field;

use super::Resource;
use super::gateway::{Gateway, encode, number};

struct InConsul {
    consul: Consul,
    gateway: Gateway,
    key: Key,
    data: String,
    /// Of the first contact, and used with every write.
    condition: Option<Condition>,
}

pub(super) async fn open(url: &str, name: &str) -> Result<impl Resource + use<>> {
    let (consul, mut gateway) = (Consul::open(url).await?, Gateway::connect(url).await?);
    let (key, data) = (Key::new(name)?, format!("data-of-{name}"));
    // 0: only if it is not there.
    let (status, answer) = gateway.ask(&format!("PUT /v1/kv/{data}?cas=0"), "0").await?;
    ensure!(status == 200, "{status}: {answer}");
    Ok(InConsul { consul, gateway, key, data, condition: None })
}

impl InConsul {
    /// The answer, if the checks held. What was asked for comes first in it.
    async fn transact(&mut self, operation: String, checks: String) -> Result<Option<String>> {
        // What only reads must not be answered by a leader that was deposed.
        let body = format!("[{operation}{checks}]");
        match self.gateway.ask("PUT /v1/txn?consistent", &body).await? {
            (200, answer) => Ok(Some(answer)),
            (409, _) => Ok(None),
            (status, answer) => bail!("{status}: {answer}"),
        }
    }

    /// With a token, what was learned of it at the first contact; checks are made of it.
    fn checks(&self, token: Option<FencingToken>) -> Result<String> {
        let Some(token) = token else { return Ok(String::new()) };
        let Condition { key, session, index, .. } =
            self.condition.as_ref().context("a first contact")?;
        ensure!(*index == token.get(), "another grant's condition");
        Ok(format!(
            r#",{{"KV":{{"Verb":"check-session","Key":"{key}","Session":"{session}"}}}},
                {{"KV":{{"Verb":"check-index","Key":"{key}","Index":{index}}}}}"#
        ))
    }
}

impl Resource for InConsul {
    fn read(&mut self, token: Option<FencingToken>) -> BoxFuture<'_, Result<Option<i64>>> {
        async move {
            if let Some(token) = token {
                self.condition = self.consul.condition(&self.key, token).await?;
                if self.condition.is_none() {
                    return Ok(None);
                }
            }
            let checks = self.checks(token)?;
            let get = format!(r#"{{"KV":{{"Verb":"get","Key":"{}"}}}}"#, self.data);
            let Some(answer) = self.transact(get, checks).await? else { return Ok(None) };
            number(&json_field(&answer, "Value").context("a value")?).map(Some)
        }
        .boxed()
    }

    fn write(&mut self, number: i64, token: Option<FencingToken>) -> BoxFuture<'_, Result<bool>> {
        async move {
            let (checks, value) = (self.checks(token)?, encode(number.to_string()));
            let set =
                format!(r#"{{"KV":{{"Verb":"set","Key":"{}","Value":"{value}"}}}}"#, self.data);
            Ok(self.transact(set, checks).await?.is_some())
        }
        .boxed()
    }
}
