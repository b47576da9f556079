//! One round: the buyers, article by article, and the one of them that is paused.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::buyer::{JOB, Job};
use crate::report::Report;
use crate::shop;

/// What is sold, where, to how many.
pub(crate) struct Sale {
    pub(crate) shop: String,
    pub(crate) locks: String,
    pub(crate) buyers: u32,
    pub(crate) articles: u32,
    pub(crate) lease: Duration,
}

/// How the buyers are kept apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    Nothing,
    Lock,
    Paused,
    Fence,
}

/// What came of it.
pub(crate) struct Outcome {
    pub(crate) sold: u32,
    /// How often a buyer was told that its token is stale.
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
            // Where nobody is meant to outlive a lease, a busy machine shall not make it so.
            lease: if pauses { sale.lease } else { LONG_LEASE },
            locked: self != Round::Nothing,
            fenced: self == Round::Fence,
        };
        let buyers = (0..sale.buyers).map(|_| Buyer::start(&job)).collect::<Result<_>>()?;
        let mut buyers: Vec<Buyer> = buyers;
        let mut refused = 0;
        for article in 0..sale.articles {
            // Another one each time.
            buyers.rotate_left(1);
            refused += sell(&mut buyers, article, pauses)?;
            let sold = shop.sold().await?;
            report.progress(self, article + 1, sold);
        }
        buyers.into_iter().try_for_each(Buyer::finish)?;
        Ok(Outcome { sold: shop.sold().await?, refused })
    }
}

/// Everybody wants one piece of this article. With `pause` the first is stopped after it has looked
/// at the stock and before it writes, until the second has bought: so its lease is over.
fn sell(buyers: &mut [Buyer], article: u32, pause: bool) -> Result<u32> {
    let (first, others) = buyers.split_first_mut().context("buyers")?;
    if pause {
        first.tell(&format!("pause {article}"))?;
        first.hear("between")?;
        first.signal(Signal::STOP)?;
        // Lies in its input when it wakes up: to write is the next that it does.
        first.tell("go")?;
    } else {
        first.tell(&format!("buy {article}"))?;
    }
    others.iter_mut().try_for_each(|other| other.tell(&format!("buy {article}")))?;
    let mut refused = 0;
    for other in others {
        refused += other.done()?;
        if pause {
            // Somebody else had the lock meanwhile. Once is enough; to the others it does nothing.
            first.signal(Signal::CONT)?;
        }
    }
    Ok(refused + first.done()?)
}

/// A buyer's process.
struct Buyer {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Buyer {
    fn start(job: &Job) -> Result<Buyer> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(JOB, job.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a buyer")?;
        let orders = child.stdin.take().context("a stdin")?;
        let answers = BufReader::new(child.stdout.take().context("a stdout")?);
        let mut buyer = Buyer { child, orders, answers };
        buyer.hear("ready")?;
        Ok(buyer)
    }

    fn tell(&mut self, order: &str) -> Result<()> {
        writeln!(self.orders, "{order}").context("a buyer is gone")
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn hear(&mut self, word: &str) -> Result<()> {
        match self.answer()? {
            answer if answer == word => Ok(()),
            answer => bail!("a buyer says `{answer}` instead of `{word}`"),
        }
    }

    /// Until it has bought or has been told that nothing is left: how often it was refused.
    fn done(&mut self) -> Result<u32> {
        let answer = self.answer()?;
        let refused = answer.strip_prefix("done ").and_then(|number| number.parse().ok());
        refused.with_context(|| format!("a buyer says `{answer}`"))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.context("a pid")?, signal)?)
    }

    fn finish(self) -> Result<()> {
        let Buyer { mut child, orders, .. } = self;
        drop(orders);
        child.wait()?;
        Ok(())
    }
}

const LONG_LEASE: Duration = Duration::from_secs(60);
