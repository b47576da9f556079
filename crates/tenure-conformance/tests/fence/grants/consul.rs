//! In Consul: a transaction checks the session and the index of the lock's key.

use anyhow::{Context, Result, bail, ensure};
use async_trait::async_trait;
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
    /// The condition of the first contact, used with every write.
    condition: Option<Condition>,
}

pub(super) async fn open(url: &str, name: &str) -> Result<impl Resource + use<>> {
    let consul = Consul::open(url).await?;
    let mut gateway = Gateway::connect(url).await?;
    let key = Key::new(name)?;
    let data = format!("data-of-{name}");
    // 0: only if it is not there.
    let (status, response) = gateway.request(&format!("PUT /v1/kv/{data}?cas=0"), "0").await?;
    ensure!(status == 200, "{status}: {response}");
    Ok(InConsul { consul, gateway, key, data, condition: None })
}

impl InConsul {
    /// The response, if the checks held. The result of the operation comes first in it.
    async fn transact(&mut self, operation: String, checks: String) -> Result<Option<String>> {
        // A transaction that only reads must not be served by a deposed leader.
        let body = format!("[{operation}{checks}]");
        match self.gateway.request("PUT /v1/txn?consistent", &body).await? {
            (200, response) => Ok(Some(response)),
            (409, _) => Ok(None),
            (status, response) => bail!("{status}: {response}"),
        }
    }

    /// The checks for this token, by the condition of the first contact. Empty without a token.
    fn checks(&self, token: Option<FencingToken>) -> Result<String> {
        let Some(token) = token else { return Ok(String::new()) };
        let Condition { key, session, index, .. } =
            self.condition.as_ref().context("a first contact")?;
        ensure!(*index == token.get() / 1024, "another grant's condition");
        Ok(format!(
            r#",{{"KV":{{"Verb":"check-session","Key":"{key}","Session":"{session}"}}}},
                {{"KV":{{"Verb":"check-index","Key":"{key}","Index":{index}}}}}"#
        ))
    }
}

#[async_trait]
impl Resource for InConsul {
    async fn read(&mut self, token: Option<FencingToken>) -> Result<Option<i64>> {
        if let Some(token) = token {
            self.condition = self.consul.condition(&self.key, token).await?;
            if self.condition.is_none() {
                return Ok(None);
            }
        }
        let checks = self.checks(token)?;
        let get = format!(r#"{{"KV":{{"Verb":"get","Key":"{}"}}}}"#, self.data);
        let Some(response) = self.transact(get, checks).await? else { return Ok(None) };
        number(&json_field(&response, "Value").context("a value")?).map(Some)
    }

    async fn write(&mut self, number: i64, token: Option<FencingToken>) -> Result<bool> {
        let checks = self.checks(token)?;
        let value = encode(number.to_string());
        let set = format!(r#"{{"KV":{{"Verb":"set","Key":"{}","Value":"{value}"}}}}"#, self.data);
        Ok(self.transact(set, checks).await?.is_some())
    }
}
