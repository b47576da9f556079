//! In etcd: a transaction compares the create revision of the lock's key.

use anyhow::{Context, Result, ensure};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
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
    /// Of the first contact, and used with every write.
    condition: Option<Condition>,
}

pub(super) async fn open(url: &str, name: &str) -> Result<impl Resource + use<>> {
    let (etcd, gateway) = (Etcd::open(url).await?, Gateway::connect(url).await?);
    let (key, data) = (Key::new(name)?, encode(format!("data of {name}")));
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

    /// The answer, if the comparison was true.
    async fn transact(&mut self, compare: &str, operation: &str) -> Result<Option<String>> {
        let body = format!(r#"{{"compare":[{compare}],"success":[{operation}]}}"#);
        let (status, answer) = self.gateway.ask("POST /v3/kv/txn", &body).await?;
        ensure!(status == 200, "{status}: {answer}");
        let succeeded = json_field(&answer, "succeeded").is_some_and(|word| word == "true");
        Ok(succeeded.then_some(answer))
    }

    /// With a token, what was learned of it at the first contact; a comparison is made of it.
    fn compare(&self, token: Option<FencingToken>) -> Result<String> {
        let Some(token) = token else { return Ok(String::new()) };
        let condition = self.condition.as_ref().context("a first contact")?;
        ensure!(condition.create_revision == token.as_i64(), "another grant's condition");
        let (key, revision) = (encode(&condition.key), condition.create_revision);
        Ok(format!(r#"{{"target":"CREATE","key":"{key}","createRevision":"{revision}"}}"#))
    }
}

impl Resource for InEtcd {
    fn read(&mut self, token: Option<FencingToken>) -> BoxFuture<'_, Result<Option<i64>>> {
        async move {
            if let Some(token) = token {
                self.condition = self.etcd.condition(&self.key, token).await?;
                if self.condition.is_none() {
                    return Ok(None);
                }
            }
            let compare = self.compare(token)?;
            let range = format!(r#"{{"requestRange":{{"key":"{}"}}}}"#, self.data);
            let Some(answer) = self.transact(&compare, &range).await? else { return Ok(None) };
            number(&json_field(&answer, "value").context("a value")?).map(Some)
        }
        .boxed()
    }

    fn write(&mut self, number: i64, token: Option<FencingToken>) -> BoxFuture<'_, Result<bool>> {
        async move {
            let (compare, put) = (self.compare(token)?, self.put(number));
            Ok(self.transact(&compare, &put).await?.is_some())
        }
        .boxed()
    }
}
