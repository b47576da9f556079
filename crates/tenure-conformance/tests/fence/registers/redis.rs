//! In Redis.

use anyhow::Result;
use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::cmd;
use tenure::FencingToken;
use tenure::fence;

use super::{FenceResult, Register, split_stale};

struct Redis {
    db: MultiplexedConnection,
    name: String,
}

pub(super) async fn open(url: &str, name: &str) -> Result<impl Register + use<>> {
    let mut db = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    cmd("SET").arg(name).arg(0).arg("NX").exec_async(&mut db).await?;
    Ok(Redis { db, name: name.to_owned() })
}

#[async_trait]
impl Register for Redis {
    async fn read(&mut self, token: Option<FencingToken>) -> FenceResult<i64> {
        if let Some(token) = token
            && let Err(stale) =
                split_stale(fence::redis::admit(&mut self.db, &self.name, token).await)?
        {
            return Ok(Err(stale));
        }
        Ok(Ok(cmd("GET").arg(&self.name).query_async(&mut self.db).await?))
    }

    async fn read_shared(&mut self, token: FencingToken) -> FenceResult<i64> {
        let admitted = fence::redis::admit_shared(&mut self.db, &self.name, token).await;
        if let Err(stale) = split_stale(admitted)? {
            return Ok(Err(stale));
        }
        Ok(Ok(cmd("GET").arg(&self.name).query_async(&mut self.db).await?))
    }

    async fn write(&mut self, number: i64, token: Option<FencingToken>) -> FenceResult<()> {
        match token {
            Some(token) => {
                split_stale(fence::redis::set(&mut self.db, &self.name, token, number).await)
            }
            None => {
                let mut set = cmd("SET");
                Ok(Ok(set.arg(&self.name).arg(number).exec_async(&mut self.db).await?))
            }
        }
    }

    async fn spoil(&mut self, fence: Option<&str>) -> Result<()> {
        let key = fence::redis::key(&self.name);
        let command = match fence {
            None => cmd("DEL").arg(key).to_owned(),
            Some(text) => cmd("SET").arg(key).arg(text).to_owned(),
        };
        Ok(command.exec_async(&mut self.db).await?)
    }
}
