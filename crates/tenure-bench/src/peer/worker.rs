//! This program started again: clients in Rust, in a process of their own.

use std::io::BufRead;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::future::try_join_all;
use redis::aio::MultiplexedConnection;
use rslock::LockManager;
use serde_json::{Value, json};
use tenure::{Client, Guard, Lock};
use tenure_servers::Node;

use super::Process;
use crate::warm::percentile;

/// The only argument of such a process.
const WORKER: &str = "peer";
const TTL: Duration = Duration::from_secs(30);
/// How soon a bare client tries again.
const AGAIN: Duration = Duration::from_millis(1);

/// Starts this program again as a client of this kind: `tenure`, `tenure-barging`,
/// `tenure-readers` (of a hot key all but the first read), `rslock`, `bare`.
pub(crate) fn own(node: &Node, kind: &str) -> Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(WORKER);
    Process::start(command, node, kind, 400)
}

/// Runs this program as such a process, if its arguments say so.
pub(crate) fn work(arguments: &[String]) -> Option<Result<()>> {
    (arguments.len() == 1 && arguments[0] == WORKER).then(obey)
}

fn obey() -> Result<()> {
    let variable = |name: &str| std::env::var(name).with_context(|| name.to_owned());
    let (url, kind) = (variable("TENURE_PEER_URL")?, variable("TENURE_PEER_KIND")?);
    let runtime = crate::workers()?;
    let source = runtime.block_on(Source::connect(&url, &kind))?;
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let answer = match runtime.block_on(source.obey(&line)) {
            Ok(answer) => answer,
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        println!("{answer}");
    }
    Ok(())
}

/// What makes contenders.
enum Source {
    Tenure(Client),
    /// On a hot key the first contender writes, and the others read.
    Readers(Client),
    Rslock(LockManager),
    Bare(MultiplexedConnection),
}

impl Source {
    async fn connect(url: &str, kind: &str) -> Result<Source> {
        Ok(match kind {
            "tenure" => Source::Tenure(tenure::connect(url).await?),
            "tenure-barging" => {
                Source::Tenure(tenure::connect(&format!("{url}?order=barging")).await?)
            }
            "tenure-readers" => Source::Readers(tenure::connect(url).await?),
            "rslock" => Source::Rslock(LockManager::new(vec![url.to_owned()])),
            "bare" => {
                let client = redis::Client::open(url)?;
                Source::Bare(client.get_multiplexed_async_connection().await?)
            }
            other => bail!("there is no client `{other}`"),
        })
    }

    async fn obey(&self, line: &str) -> Result<Value> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |place: usize| -> Result<u64> {
            Ok(words.get(place).context("a number is missing")?.parse()?)
        };
        let (first, tasks) = (number(1)?, number(2)?);
        if words[0] == "turn" {
            let each = usize::try_from(first.div_ceil(tasks))?;
            let contenders = (0..tasks).map(|task| self.contender(&format!("k{task}"), None));
            return run(contenders, Duration::ZERO, move |done, _| done < each).await;
        }
        let (long, hold) = (Duration::from_millis(first), Duration::from_millis(number(3)?));
        let contenders = (0..tasks).map(|task| self.contender("hot", Some(task)));
        run(contenders, hold, move |_, start| start.elapsed() < long).await
    }

    /// `hot` is its number on a hot key.
    fn contender(&self, key: &str, hot: Option<u64>) -> Contender {
        let lock = |client: &Client| client.lock(format!("tenure/{key}"));
        let held = match self {
            Source::Readers(client) if hot.is_some_and(|number| number > 0) => {
                Held::Tenure(lock(client).shared(), None)
            }
            Source::Tenure(client) | Source::Readers(client) => Held::Tenure(lock(client), None),
            Source::Rslock(manager) => Held::Rslock(manager.clone(), None),
            Source::Bare(connection) => Held::Bare(connection.clone()),
        };
        Contender { key: format!("own/{key}"), held, hot: hot.is_some() }
    }
}

/// One task that acquires and releases.
struct Contender {
    key: String,
    held: Held,
    /// Whether the time of a wait counts, or that of the whole cycle.
    hot: bool,
}

/// A lock and what is needed to release it.
enum Held {
    Tenure(Lock, Option<Guard>),
    Rslock(LockManager, Option<rslock::Lock>),
    Bare(MultiplexedConnection),
}

impl Contender {
    async fn acquire(&mut self) -> Result<()> {
        match &mut self.held {
            Held::Tenure(lock, guard) => *guard = Some(lock.acquire().await?),
            Held::Rslock(manager, lock) => {
                *lock = Some(
                    manager.acquire_no_guard(format!("rs/{}", self.key).as_bytes(), TTL).await?,
                );
            }
            Held::Bare(connection) => loop {
                let mut set = redis::cmd("SET");
                set.arg(&self.key).arg("me").arg("NX").arg("PX").arg(TTL.as_millis() as u64);
                if set.query_async::<Option<String>>(connection).await?.is_some() {
                    break;
                }
                tokio::time::sleep(AGAIN).await;
            },
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        match &mut self.held {
            Held::Tenure(_, guard) => guard.take().context("it is held")?.release().await?,
            Held::Rslock(manager, lock) => {
                manager.unlock(&lock.take().context("it is held")?).await;
            }
            Held::Bare(connection) => {
                redis::cmd("DEL").arg(&self.key).exec_async(connection).await?;
            }
        }
        Ok(())
    }
}

/// Lets each go on while it may.
async fn run(
    contenders: impl Iterator<Item = Contender>,
    hold: Duration,
    go_on: impl Fn(usize, Instant) -> bool + Copy + Send + 'static,
) -> Result<Value> {
    let start = Instant::now();
    let tasks = contenders.map(|mut contender| {
        tokio::spawn(async move {
            let (mut times, mut grants) = (Vec::new(), 0);
            while go_on(times.len(), start) {
                let began = Instant::now();
                contender.acquire().await?;
                let waited = began.elapsed();
                // A grant after the end, when others have stopped, says nothing about fairness.
                grants += usize::from(go_on(times.len(), start));
                if !hold.is_zero() {
                    tokio::time::sleep(hold).await;
                }
                contender.release().await?;
                let time = if contender.hot { waited } else { began.elapsed() };
                times.push(time.as_secs_f64() * 1e6);
            }
            anyhow::Ok((times, grants))
        })
    });
    let done: Vec<(Vec<f64>, usize)> =
        try_join_all(tasks).await?.into_iter().collect::<Result<Vec<_>>>()?;
    let elapsed = start.elapsed();
    let grants: Vec<usize> = done.iter().map(|(_, grants)| *grants).collect();
    let mut first = done.first().map(|(times, _)| times.clone()).unwrap_or_default();
    let mut all: Vec<f64> = done.into_iter().flat_map(|(times, _)| times).collect();
    first.sort_unstable_by(f64::total_cmp);
    all.sort_unstable_by(f64::total_cmp);
    Ok(json!({
        "elapsed_us": elapsed.as_secs_f64() * 1e6, "grants": grants,
        "total": all.len(),
        "p50_us": percentile(&all, 50), "p99_us": percentile(&all, 99),
        "max_us": percentile(&all, 100),
        "first_p50_us": percentile(&first, 50), "first_max_us": percentile(&first, 100),
    }))
}
