//! In ZooKeeper: a transaction checks the holder's node.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use tenure::backends::{Zookeeper, zookeeper::Condition};
use tenure::{FencingToken, Hosted, Key};
use zookeeper_client::{Acls, Client, CreateMode, Error, MultiWriteError};

use super::Resource;

struct InZookeeper {
    zookeeper: Hosted<Zookeeper>,
    client: Client,
    key: Key,
    data: String,
    /// The condition of the first contact, used with every write.
    condition: Option<(FencingToken, Condition)>,
}

pub(super) async fn open(url: &str, name: &str) -> Result<impl Resource + use<>> {
    let servers = url.trim_start_matches("zk://");
    // Longer than every pause: the session of the data is not what is tested.
    let client = Client::connector().with_session_timeout(Duration::from_secs(60));
    let client = client.connect(servers).await?;
    let key = Key::new(name)?;
    let data = format!("/data-of-{name}");
    let anyone = CreateMode::Persistent.with_acls(Acls::anyone_all());
    match client.create(&data, b"0", &anyone).await {
        Ok(_) | Err(Error::NodeExists) => {}
        Err(error) => return Err(error.into()),
    }
    let zookeeper = Zookeeper::open(url).await?;
    Ok(InZookeeper { zookeeper, client, key, data, condition: None })
}

#[async_trait]
impl Resource for InZookeeper {
    async fn read(&mut self, token: Option<FencingToken>) -> Result<Option<i64>> {
        if let Some(token) = token {
            let condition = self.zookeeper.condition(&self.key, token).await?;
            let Some(condition) = condition else { return Ok(None) };
            self.condition = Some((token, condition));
        }
        // A transaction cannot both check and read. The read need not check, but it must not
        // be older than the grant, which came by another connection.
        self.client.sync(&self.data).await?;
        let (text, _) = self.client.get_data(&self.data).await?;
        Ok(Some(String::from_utf8(text)?.parse()?))
    }

    async fn write(&mut self, number: i64, token: Option<FencingToken>) -> Result<bool> {
        let mut writer = self.client.new_multi_writer();
        if let Some(token) = token {
            let (_, condition) = self
                .condition
                .as_ref()
                .filter(|(its, _)| *its == token)
                .context("a first contact")?;
            writer.add_check_version(&condition.path, condition.version)?;
        }
        writer.add_set_data(&self.data, number.to_string().as_bytes(), None)?;
        match writer.commit().await {
            Ok(_) => Ok(true),
            Err(MultiWriteError::OperationFailed { index: 0, source: Error::NoNode })
                if token.is_some() =>
            {
                Ok(false)
            }
            Err(error) => bail!(error),
        }
    }
}
