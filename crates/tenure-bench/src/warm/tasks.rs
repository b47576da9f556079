//! Subjects of this process: a loop in each task.

use std::time::Instant;

use anyhow::{Context, Result};
use futures_util::future::try_join_all;
use tenure::{Client, Lock};
use tokio::runtime::Runtime;

use super::{Subject, Timing, percentile};

/// What one task does again and again.
pub(crate) trait Cycle: Send + 'static {
    /// Acquires and releases.
    fn once(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Waits for what is still under way at the end of a turn.
    fn finish(&mut self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }
}

/// Tasks of a runtime of this process.
pub(crate) struct Own<'a, C> {
    runtime: &'a Runtime,
    cycles: Vec<C>,
}

impl<'a, C: Cycle> Own<'a, C> {
    /// With what so many tasks do, at most.
    pub(crate) fn new(runtime: &'a Runtime, tasks: usize, make: impl FnMut(usize) -> C) -> Self {
        Own { runtime, cycles: (0..tasks).map(make).collect() }
    }
}

impl<C: Cycle> Subject for Own<'_, C> {
    fn turn(&mut self, cycles: usize, tasks: usize) -> Result<Timing> {
        let each = cycles.div_ceil(tasks);
        let mut busy = std::mem::take(&mut self.cycles);
        let idle = busy.split_off(tasks.min(busy.len()));
        let start = Instant::now();
        let running: Vec<_> =
            busy.into_iter().map(|cycle| self.runtime.spawn(repeat(cycle, each))).collect();
        let done = self.runtime.block_on(try_join_all(running)).context("a task")?;
        let elapsed = start.elapsed();
        let mut times = Vec::with_capacity(cycles);
        for task in done {
            let (cycle, spent) = task?;
            self.cycles.push(cycle);
            times.extend(spent);
        }
        // Behind the others: the same ones are warm in the next turn.
        self.cycles.extend(idle);
        times.sort_unstable_by(f64::total_cmp);
        Ok(Timing { elapsed, p50_us: percentile(&times, 50), p99_us: percentile(&times, 99) })
    }
}

/// The loop of one task; how long each cycle took, in µs.
async fn repeat<C: Cycle>(mut cycle: C, times: usize) -> Result<(C, Vec<f64>)> {
    let mut spent = Vec::with_capacity(times);
    for _ in 0..times {
        let start = Instant::now();
        cycle.once().await?;
        spent.push(start.elapsed().as_secs_f64() * 1e6);
    }
    cycle.finish().await?;
    Ok((cycle, spent))
}

/// tenure, which waits until the release is confirmed.
pub(crate) struct Released(pub(crate) Lock);

impl Cycle for Released {
    async fn once(&mut self) -> Result<()> {
        Ok(self.0.acquire().await?.release().await?)
    }
}

/// tenure, which drops the guard and goes on.
pub(crate) struct Dropped {
    client: Client,
    lock: Lock,
}

impl Dropped {
    pub(crate) fn new(client: &Client, key: String) -> Dropped {
        Dropped { lock: client.lock(key), client: client.clone() }
    }
}

impl Cycle for Dropped {
    async fn once(&mut self) -> Result<()> {
        drop(self.lock.acquire().await?);
        Ok(())
    }

    async fn finish(&mut self) -> Result<()> {
        Ok(self.client.flush().await?)
    }
}
