//! A shop in Redis, in keys that begin with `{flash-sale/ARTICLE}`.

use std::sync::LazyLock;

use anyhow::Result;
use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{Client, Script, cmd};
use tenure::{FencingToken, fence};

use super::{Shop, admitted, resource};

struct Redis(MultiplexedConnection);

/// Sets the stock and counts the order in one step, after the fencing check.
static SELL: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&format!(
        "{}
        if ARGV[1] ~= '' then
          local refused = tenure_admit(KEYS[1], ARGV[1])
          if refused then return refused end
        end
        redis.call('SET', KEYS[2], ARGV[2])
        redis.call('INCR', KEYS[3])
        return redis.status_reply('OK')",
        fence::redis::CHECK
    ))
});

pub(super) async fn open(url: &str) -> Result<impl Shop + use<>> {
    Ok(Redis(Client::open(url)?.get_multiplexed_async_connection().await?))
}

#[async_trait]
impl Shop for Redis {
    async fn stock_up(&mut self, articles: u32, pieces: i64) -> Result<()> {
        cmd("SET").arg("flash-sale:articles").arg(articles).exec_async(&mut self.0).await?;
        for article in 0..articles {
            cmd("SET").arg(stock(article)).arg(pieces).exec_async(&mut self.0).await?;
            cmd("SET").arg(orders(article)).arg(0).exec_async(&mut self.0).await?;
        }
        Ok(())
    }

    async fn read_stock(
        &mut self,
        article: u32,
        token: Option<FencingToken>,
    ) -> Result<Option<i64>> {
        let fence = resource(article);
        if let Some(token) = token
            && !admitted(fence::redis::admit(&mut self.0, &fence, token).await)?
        {
            return Ok(None);
        }
        Ok(Some(cmd("GET").arg(stock(article)).query_async(&mut self.0).await?))
    }

    async fn sell(&mut self, article: u32, left: i64, token: Option<FencingToken>) -> Result<bool> {
        let mut call = SELL.key(fence::redis::key(&resource(article)));
        call.key(stock(article)).key(orders(article));
        call.arg(token.map(|token| token.to_string()).unwrap_or_default()).arg(left);
        match (call.invoke_async::<()>(&mut self.0).await, token) {
            (Err(error), Some(token)) => admitted(Err(fence::redis::refused(error, token))),
            (done, _) => Ok(done.map(|()| true)?),
        }
    }

    async fn sold(&mut self) -> Result<u32> {
        let articles: u32 = cmd("GET").arg("flash-sale:articles").query_async(&mut self.0).await?;
        let mut sold = 0;
        for article in 0..articles {
            let of: u32 = cmd("GET").arg(orders(article)).query_async(&mut self.0).await?;
            sold += of;
        }
        Ok(sold)
    }

    async fn close(&mut self) -> Result<()> {
        let articles: Option<u32> =
            cmd("GET").arg("flash-sale:articles").query_async(&mut self.0).await?;
        for article in 0..articles.unwrap_or(0) {
            let fence = fence::redis::key(&resource(article));
            for key in [stock(article), orders(article), fence] {
                cmd("DEL").arg(key).exec_async(&mut self.0).await?;
            }
        }
        cmd("DEL").arg("flash-sale:articles").exec_async(&mut self.0).await?;
        Ok(())
    }
}

/// The key of the stock. In a cluster it has the same slot as its fence.
fn stock(article: u32) -> String {
    format!("{{{}}}:stock", resource(article))
}

fn orders(article: u32) -> String {
    format!("{{{}}}:orders", resource(article))
}
