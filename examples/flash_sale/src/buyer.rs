//! A buyer: looks at the stock, thinks, and takes one piece.

use std::fmt;
use std::io::{Lines, StdinLock, stdin};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, set_parent_process_death_signal};
use tenure::{Client, Config, Guard};

use crate::shop::{self, Shop};

/// The environment variable that makes this program a buyer.
pub(crate) const JOB: &str = "FLASH_SALE_BUYER";

/// How a buyer goes about it.
pub(crate) struct Job {
    pub(crate) shop: String,
    pub(crate) locks: String,
    pub(crate) lease: Duration,
    pub(crate) locked: bool,
    pub(crate) fenced: bool,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Job { shop, locks, lease, locked, fenced } = self;
        write!(f, "{shop}\n{locks}\n{}\n{locked}\n{fenced}", lease.as_millis())
    }
}

/// The job, if this process was started for one.
pub(crate) fn job() -> Option<Job> {
    let text = std::env::var(JOB).ok()?;
    let parts: Vec<_> = text.lines().collect();
    let [shop, locks, lease, locked, fenced] = parts[..] else { return None };
    Some(Job {
        shop: shop.to_owned(),
        locks: locks.to_owned(),
        lease: Duration::from_millis(lease.parse().ok()?),
        locked: locked.parse().ok()?,
        fenced: fenced.parse().ok()?,
    })
}

/// Buys what it is told to, until nobody tells it any more.
pub(crate) async fn buy(job: Job) -> Result<()> {
    // One that is stopped cannot see that the sale was broken off.
    set_parent_process_death_signal(Some(Signal::KILL)).ok();
    let shop = shop::open(&job.shop).await?;
    // The leases are short for a show, and a busy machine shall not end it.
    let config: Config = job.locks.parse()?;
    let client = config.outage(Duration::from_secs(30)).connect().await?;
    let mut buyer = Buyer { job, shop, client, orders: stdin().lines() };
    println!("ready");
    while let Some(order) = buyer.orders.next() {
        let order = order?;
        let (verb, article) = order.split_once(' ').context("VERB ARTICLE")?;
        let (mut pause, article) = (verb == "pause", article.parse()?);
        let mut refused = 0;
        while !buyer.bought(article, pause).await? {
            (refused, pause) = (refused + 1, false);
        }
        println!("done {refused}");
    }
    Ok(())
}

struct Buyer {
    job: Job,
    shop: Box<dyn Shop>,
    client: Client,
    orders: Lines<StdinLock<'static>>,
}

impl Buyer {
    /// Buys one piece, or finds that nothing is left. False if the stock refused its token: the
    /// lock was lost, and it has to begin again.
    async fn bought(&mut self, article: u32, pause: bool) -> Result<bool> {
        let guard = self.acquire(article).await?;
        let token = guard.as_ref().map(Guard::token).filter(|_| self.job.fenced);
        // The token is shown before the first look, and again with the write.
        let Some(left) = self.shop.look(article, token).await? else { return Ok(false) };
        if left > 0 {
            self.think(pause).await?;
            if !self.shop.take(article, left - 1, token).await? {
                return Ok(false);
            }
        }
        if let Some(guard) = guard {
            // Says Lost after a pause, which a real buyer would want to know; here the stock tells.
            guard.release().await.ok();
        }
        Ok(true)
    }

    /// A lease that is not renewed: a stopped process would not renew it either, and this one is
    /// never stopped in the middle of a renewal, which would hold up the others in SQLite.
    async fn acquire(&self, article: u32) -> Result<Option<Guard>> {
        if !self.job.locked {
            return Ok(None);
        }
        let lock = self.client.lock(format!("flash-sale/{article}")).ttl(self.job.lease);
        Ok(Some(lock.without_renewal().acquire().await?))
    }

    /// Enters an address and a card, or is stopped in the middle of it.
    async fn think(&mut self, pause: bool) -> Result<()> {
        if !pause {
            tokio::time::sleep(Duration::from_millis(5)).await;
            return Ok(());
        }
        println!("between");
        match self.orders.next().context("leave to go on")?? {
            go if go == "go" => Ok(()),
            other => bail!("`{other}` instead of `go`"),
        }
    }
}
