//! Eight processes, ten thousand writes, and twenty times a holder that is stopped, between its
//! read and its write, until its lease is over and the next one has written. With the fence no
//! update may be lost; without it some must be, else the experiment shows nothing.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tenure::FencingToken;

use crate::grants::open;
use crate::worker::{Job, Word, Worker};
use crate::{cases, unique};

cases! {
    twenty_paused_holders_lose_no_update_with_the_fence_and_some_without on
        &["consul", "etcd", "file", "http", "mysql", "postgres", "redis", "sqlite", "zookeeper"];
}

const LANES: usize = 4;
const WORKERS_PER_LANE: usize = 2;
const PAUSES_PER_LANE: u32 = 5;
const WRITES_PER_WORKER: u32 = 1250;
const BATCH: u32 = 25;

async fn twenty_paused_holders_lose_no_update_with_the_fence_and_some_without(
    url: String,
) -> Result<()> {
    let (with, without) = match is_server_of_locks(&url) {
        // Most of the time goes by in pauses, so both halves wait at the same time.
        true => tokio::try_join!(run(&url, true), run(&url, false))?,
        false => (run(&url, true).await?, run(&url, false).await?),
    };
    ensure!(with.lost == 0, "with the fence {} updates were lost", with.lost);
    let least = PAUSES_PER_LANE * LANES as u32;
    ensure!(with.refused >= least, "{} refusals of {least} stale holders", with.refused);
    ensure!(without.lost > 0, "inconclusive: without the fence no update was lost either");
    Ok(())
}

struct Outcome {
    lost: i64,
    refused: u32,
}

/// All lanes at once: each has a resource, a lock, two workers and a quarter of the pauses.
async fn run(store: &str, fenced: bool) -> Result<Outcome> {
    let folder = tempfile::tempdir()?;
    let locks = locks_for(store, folder.path());
    let names: Vec<_> = (0..LANES).map(|_| unique("lane")).collect();
    let lanes = names.iter().map(|name| {
        let (locks, store, name) = (locks.clone(), store.to_owned(), name.clone());
        let job = Job { locks, store, name, fenced, writes: WRITES_PER_WORKER, batch: BATCH };
        tokio::task::spawn_blocking(move || Lane::start(&job)?.run())
    });
    let mut outcome = Outcome { lost: 0, refused: 0 };
    for (lane, name) in lanes.collect::<Vec<_>>().into_iter().zip(&names) {
        outcome.refused += lane.await??;
        let left = open(store, name).await?.read(None).await?.context("a number")?;
        outcome.lost += i64::from(WRITES_PER_WORKER) * WORKERS_PER_LANE as i64 - left;
    }
    Ok(outcome)
}

/// Whether it is the lock that fences, and not a comparison of tokens.
fn is_server_of_locks(store: &str) -> bool {
    ["consul", "etcd", "zk"].iter().any(|scheme| store.starts_with(&format!("{scheme}://")))
}

/// Where the locks are: on the same server if it is the lock that fences, else in a file. Their
/// leases are short, for each pause has to outlast one, and long enough that a holder which is not
/// stopped keeps its lock on a busy machine, most times; where it does not, nothing is lost either.
fn locks_for(store: &str, folder: &Path) -> String {
    if !is_server_of_locks(store) {
        return format!("sqlite://{}/locks.db?ttl=400ms&outage=60s", folder.display());
    }
    // Consul ends a session after one or two times its ttl.
    let session = if store.starts_with("zk") { "session=2s&" } else { "" };
    format!("{store}?{session}ttl=2s&outage=60s")
}

/// The workers of one resource, and who of them is stopped.
struct Lane {
    workers: Vec<Worker>,
    words: Receiver<(usize, Result<Word>)>,
    stopped: Option<(usize, FencingToken)>,
    pauses: u32,
    working: usize,
    refused: u32,
}

impl Lane {
    fn start(job: &Job) -> Result<Lane> {
        let (sender, words) = channel();
        let workers = (0..WORKERS_PER_LANE).map(|number| hire(job, number, sender.clone()));
        let workers: Vec<_> = workers.collect::<Result<_>>()?;
        let working = workers.len();
        Ok(Lane { workers, words, stopped: None, pauses: 0, working, refused: 0 })
    }

    /// Until all are done; returns how often they were refused.
    fn run(mut self) -> Result<u32> {
        while self.working > 0 {
            let (number, word) = self.words.recv().context("a worker that says something")?;
            match word? {
                Word::Between(token) => self.between(number, token)?,
                Word::Wrote(token) => self.wrote(number, token)?,
                Word::Done(refused) => {
                    self.working -= 1;
                    self.refused += refused;
                    // Nobody is left to take over.
                    if let Some((stopped, _)) = self.stopped {
                        self.wake(stopped)?;
                    }
                }
            }
        }
        ensure!(self.pauses == PAUSES_PER_LANE, "only {} pauses", self.pauses);
        Ok(self.refused)
    }

    /// A holder has read. While pauses are left, and somebody to take over, it is stopped here.
    fn between(&mut self, number: usize, token: FencingToken) -> Result<()> {
        let others = self.working == self.workers.len();
        if self.stopped.is_none() && others && self.pauses < PAUSES_PER_LANE {
            self.workers[number].signal(Signal::STOP)?;
            self.stopped = Some((number, token));
            self.pauses += 1;
        }
        // To a stopped one this lies in its input when it wakes up: the write is what it does next.
        self.workers[number].go()
    }

    /// A holder has written. If it came after the stopped one, that one may go on.
    fn wrote(&mut self, number: usize, token: FencingToken) -> Result<()> {
        match self.stopped {
            // What was said before the stop may be heard after it; the token tells.
            Some((stopped, its)) if stopped != number && token > its => self.wake(stopped),
            _ => Ok(()),
        }
    }

    fn wake(&mut self, stopped: usize) -> Result<()> {
        self.stopped = None;
        self.workers[stopped].signal(Signal::CONT)
    }
}

/// Starts a worker and passes on what it says.
fn hire(job: &Job, number: usize, sender: Sender<(usize, Result<Word>)>) -> Result<Worker> {
    let (worker, mut words) = Worker::start(job)?;
    thread::spawn(move || {
        loop {
            let word = words.next();
            let last = matches!(word, Err(_) | Ok(Word::Done(_)));
            if sender.send((number, word)).is_err() || last {
                break;
            }
        }
    });
    Ok(worker)
}
