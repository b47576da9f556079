//! A buyer: reads the stock, enters its data, and buys one piece.

use std::fmt;
use std::io::{Lines, StdinLock, stdin};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, set_parent_process_death_signal};
use tenure::{Client, Config, Guard};

use crate::shop::{self, Shop};

/// The environment variable that makes this program a buyer.
pub(crate) const JOB: &str = "FLASH_SALE_BUYER";

/// What a buyer process needs.
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

/// The job, if this process is a buyer.
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

/// Buys the articles that the main process names, until it closes the pipe.
pub(crate) async fn buy(job: Job) -> Result<()> {
    // A stopped process cannot notice that the pipe was closed.
    set_parent_process_death_signal(Some(Signal::KILL)).ok();
    let shop = shop::open(&job.shop).await?;
    // The leases are short; a busy machine must not end the sale with an error.
    let config: Config = job.locks.parse()?;
    let client = config.outage(Duration::from_secs(30)).connect().await?;
    let mut buyer = Buyer { job, shop, client, requests: stdin().lines() };
    println!("ready");
    while let Some(request) = buyer.requests.next() {
        let request = request?;
        let (verb, article) = request.split_once(' ').context("VERB ARTICLE")?;
        let mut pause = verb == "pause";
        let article = article.parse()?;
        let mut refused = 0;
        while !buyer.bought(article, pause).await? {
            refused += 1;
            pause = false;
        }
        println!("done {refused}");
    }
    Ok(())
}

struct Buyer {
    job: Job,
    shop: Box<dyn Shop>,
    client: Client,
    requests: Lines<StdinLock<'static>>,
}

impl Buyer {
    /// Buys one piece, unless nothing is left. Returns false if the stock refused its token: the
    /// lock was lost, and the buyer has to start again.
    async fn bought(&mut self, article: u32, pause: bool) -> Result<bool> {
        let guard = self.acquire(article).await?;
        let token = guard.as_ref().map(Guard::token).filter(|_| self.job.fenced);
        // The token is checked with the read, and again with the write.
        let Some(left) = self.shop.read_stock(article, token).await? else { return Ok(false) };
        if left > 0 {
            self.enter_data(pause).await?;
            if !self.shop.sell(article, left - 1, token).await? {
                return Ok(false);
            }
        }
        if let Some(guard) = guard {
            // It fails with Lost after a pause, which a real program should handle; here the stock
            // refuses the token.
            guard.release().await.ok();
        }
        Ok(true)
    }

    /// Acquires the lock without renewals: a stopped process would not renew it either, and this
    /// one is never stopped during a renewal, which would block the other buyers in SQLite.
    async fn acquire(&self, article: u32) -> Result<Option<Guard>> {
        if !self.job.locked {
            return Ok(None);
        }
        let lock = self.client.lock(format!("flash-sale/{article}")).ttl(self.job.lease);
        Ok(Some(lock.without_renewal().acquire().await?))
    }

    /// The time between the read and the write, in which the process may be stopped.
    async fn enter_data(&mut self, pause: bool) -> Result<()> {
        if !pause {
            tokio::time::sleep(Duration::from_millis(5)).await;
            return Ok(());
        }
        println!("between");
        match self.requests.next().context("the request to go on")?? {
            go if go == "go" => Ok(()),
            other => bail!("`{other}` instead of `go`"),
        }
    }
}
