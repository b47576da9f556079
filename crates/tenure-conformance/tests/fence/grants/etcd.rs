//! In etcd: a transaction compares the create revision of the lock's key.

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use tenure::backends::{Etcd, etcd::Condition};
use tenure::{FencingToken, Hosted, Key};
use tenure_servers::wire::http::json_field;

use super::Resource;
use super::gateway::{Gateway, encode, number};

struct InEtcd {
    etcd: Hosted<Etcd>,
    gateway: Gateway,
    key: Key,
    data: String,
    /// The condition of the first contact, used with every write.
    condition: Option<Condition>,
}

pub(super) async fn open(url: &str, name: &str) -> Result<impl Resource + use<>> {
    let etcd = Etcd::open(url).await?;
    let gateway = Gateway::connect(url).await?;
    let key = Key::new(name)?;
    let data = encode(format!("data of {name}"));
    let mut resource = InEtcd { etcd, gateway, key, data, condition: None };
    let absent = format!(r#"{{"target":"CREATE","key":"{}"}}"#, resource.data);
    let put = resource.put(0);
    resource.transact(&absent, &put).await?;
    Ok(resource)
}

impl InEtcd {
    fn put(&self, number: i64) -> String {
        let value = encode(number.to_string());
        format!(r#"{{"requestPut":{{"key":"{}","value":"{value}"}}}}"#, self.data)
    }

    /// The response, if the comparison was true.
    async fn transact(&mut self, compare: &str, operation: &str) -> Result<Option<String>> {
        let body = format!(r#"{{"compare":[{compare}],"success":[{operation}]}}"#);
        let (status, response) = self.gateway.request("POST /v3/kv/txn", &body).await?;
        ensure!(status == 200, "{status}: {response}");
        let succeeded = json_field(&response, "succeeded").is_some_and(|value| value == "true");
        Ok(succeeded.then_some(response))
    }

    /// The comparison for this token, by the condition of the first contact. Empty without a token.
    fn compare(&self, token: Option<FencingToken>) -> Result<String> {
        let Some(token) = token else { return Ok(String::new()) };
        let condition = self.condition.as_ref().context("a first contact")?;
        ensure!(condition.create_revision == token.as_i64() / 1024, "another grant's condition");
        let key = encode(&condition.key);
        let revision = condition.create_revision;
        Ok(format!(r#"{{"target":"CREATE","key":"{key}","createRevision":"{revision}"}}"#))
    }
}

#[async_trait]
impl Resource for InEtcd {
    async fn read(&mut self, token: Option<FencingToken>) -> Result<Option<i64>> {
        if let Some(token) = token {
            self.condition = self.etcd.condition(&self.key, token).await?;
            if self.condition.is_none() {
                return Ok(None);
            }
        }
        let compare = self.compare(token)?;
        let range = format!(r#"{{"requestRange":{{"key":"{}"}}}}"#, self.data);
        let Some(response) = self.transact(&compare, &range).await? else { return Ok(None) };
        number(&json_field(&response, "value").context("a value")?).map(Some)
    }

    async fn write(&mut self, number: i64, token: Option<FencingToken>) -> Result<bool> {
        let compare = self.compare(token)?;
        let put = self.put(number);
        Ok(self.transact(&compare, &put).await?.is_some())
    }
}
