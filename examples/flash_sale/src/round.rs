//! One round of the sale: all buyers buy each article in turn, and one of them may be paused.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::buyer::{JOB, Job};
use crate::report::Report;
use crate::shop;

/// The lease of the rounds without pauses.
const LONG_LEASE: Duration = Duration::from_secs(60);

/// The parameters of the sale.
pub(crate) struct Sale {
    pub(crate) shop: String,
    pub(crate) locks: String,
    pub(crate) buyers: u32,
    pub(crate) articles: u32,
    pub(crate) lease: Duration,
}

/// What protects the stock in a round.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    Nothing,
    Lock,
    Paused,
    Fence,
}

/// The outcome of a round.
pub(crate) struct Outcome {
    pub(crate) sold: u32,
    /// How often the stock refused a stale token.
    pub(crate) refused: u32,
}

impl Round {
    pub(crate) const ALL: [Round; 4] = [Round::Nothing, Round::Lock, Round::Paused, Round::Fence];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Round::Nothing => "no lock",
            Round::Lock => "a lock",
            Round::Paused => "a lock, a holder paused past its lease",
            Round::Fence => "the same pauses, lock and fence",
        }
    }

    pub(crate) async fn run(self, sale: &Sale, report: &mut Report) -> Result<Outcome> {
        let mut shop = shop::open(&sale.shop).await?;
        shop.stock_up(sale.articles, i64::from(sale.buyers) - 1).await?;
        let pauses = matches!(self, Round::Paused | Round::Fence);
        let job = Job {
            shop: sale.shop.clone(),
            locks: sale.locks.clone(),
            // Without pauses, no lease must end because the machine is busy.
            lease: if pauses { sale.lease } else { LONG_LEASE },
            locked: self != Round::Nothing,
            fenced: self == Round::Fence,
        };
        let buyers = (0..sale.buyers).map(|_| Buyer::start(&job)).collect::<Result<_>>()?;
        let mut buyers: Vec<Buyer> = buyers;
        let mut refused = 0;
        for article in 0..sale.articles {
            // Another buyer is the first, and is paused, for each article.
            buyers.rotate_left(1);
            refused += sell(&mut buyers, article, pauses)?;
            let sold = shop.sold().await?;
            report.progress(self, article + 1, sold);
        }
        buyers.into_iter().try_for_each(Buyer::finish)?;
        Ok(Outcome { sold: shop.sold().await?, refused })
    }
}

/// Every buyer tries to buy one piece of this article. With `pause` the first buyer is stopped
/// after it has read the stock and before it writes, until the second has bought: then its lease
/// has ended.
fn sell(buyers: &mut [Buyer], article: u32, pause: bool) -> Result<u32> {
    let (first, others) = buyers.split_first_mut().context("buyers")?;
    if pause {
        first.send(&format!("pause {article}"))?;
        first.expect("between")?;
        first.signal(Signal::STOP)?;
        // It reads this when it is continued, and then writes at once.
        first.send("go")?;
    } else {
        first.send(&format!("buy {article}"))?;
    }
    others.iter_mut().try_for_each(|other| other.send(&format!("buy {article}")))?;
    let mut refused = 0;
    for other in others {
        refused += other.done()?;
        if pause {
            // Another buyer had the lock meanwhile. The first of these signals continues the paused
            // buyer; further ones do nothing.
            first.signal(Signal::CONT)?;
        }
    }
    Ok(refused + first.done()?)
}

/// The process of a buyer.
struct Buyer {
    child: Child,
    requests: ChildStdin,
    responses: BufReader<ChildStdout>,
}

impl Buyer {
    fn start(job: &Job) -> Result<Buyer> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(JOB, job.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a buyer")?;
        let requests = child.stdin.take().context("a stdin")?;
        let responses = BufReader::new(child.stdout.take().context("a stdout")?);
        let mut buyer = Buyer { child, requests, responses };
        buyer.expect("ready")?;
        Ok(buyer)
    }

    fn send(&mut self, request: &str) -> Result<()> {
        writeln!(self.requests, "{request}").context("a buyer has ended")
    }

    fn receive(&mut self) -> Result<String> {
        let mut line = String::new();
        self.responses.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn expect(&mut self, expected: &str) -> Result<()> {
        let response = self.receive()?;
        if response != expected {
            bail!("unexpected response from a buyer: `{response}` instead of `{expected}`");
        }
        Ok(())
    }

    /// Waits until the buyer has bought or nothing is left. Returns how often it was refused.
    fn done(&mut self) -> Result<u32> {
        let response = self.receive()?;
        let refused = response.strip_prefix("done ").and_then(|number| number.parse().ok());
        refused.with_context(|| format!("unexpected response from a buyer: `{response}`"))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.context("a pid")?, signal)?)
    }

    fn finish(self) -> Result<()> {
        let Buyer { mut child, requests, .. } = self;
        drop(requests);
        child.wait()?;
        Ok(())
    }
}
