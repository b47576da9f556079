//! Eight processes make ten thousand writes. Twenty times a holder is stopped between its read and
//! its write, until its lease is over and the next holder has written. With the fence no update may
//! be lost; without it some must be, else the experiment shows nothing.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tenure::FencingToken;

use crate::grants::open;
use crate::worker::{Job, Report, Worker};
use crate::{cases, unique};

cases! {
    twenty_paused_holders_lose_no_update_with_the_fence_and_some_without on
        &["consul", "etcd", "file", "http", "mysql", "postgres", "redis", "sqlite",
            "sqlx-mysql", "sqlx-postgres", "zookeeper"];
}

const GROUPS: usize = 4;
const WORKERS_PER_GROUP: usize = 2;
const PAUSES_PER_GROUP: u32 = 5;
const WRITES_PER_WORKER: u32 = 1250;
const BATCH: u32 = 25;

async fn twenty_paused_holders_lose_no_update_with_the_fence_and_some_without(
    url: String,
) -> Result<()> {
    let (with, without) = if is_server_of_locks(&url) {
        // Most of the time is spent in pauses, so both halves run at the same time.
        tokio::try_join!(run(&url, true), run(&url, false))?
    } else {
        (run(&url, true).await?, run(&url, false).await?)
    };
    ensure!(with.lost == 0, "with the fence {} updates were lost", with.lost);
    let least = PAUSES_PER_GROUP * GROUPS as u32;
    ensure!(with.refused >= least, "{} refusals of {least} stale holders", with.refused);
    ensure!(without.lost > 0, "inconclusive: without the fence no update was lost either");
    Ok(())
}

struct Outcome {
    lost: i64,
    refused: u32,
}

/// Runs all groups at once: each has a resource, a lock, two workers and a quarter of the pauses.
async fn run(store: &str, fenced: bool) -> Result<Outcome> {
    let folder = tempfile::tempdir()?;
    let locks = locks_for(store, folder.path());
    let names: Vec<_> = (0..GROUPS).map(|_| unique("group")).collect();
    // Creates the resources: two workers that create one at once could read it half-written.
    for name in &names {
        drop(open(store, name).await?);
    }
    let groups = names.iter().map(|name| {
        let job = Job {
            locks: locks.clone(),
            store: store.to_owned(),
            name: name.clone(),
            fenced,
            writes: WRITES_PER_WORKER,
            batch: BATCH,
        };
        tokio::task::spawn_blocking(move || Group::start(&job)?.run())
    });
    let mut outcome = Outcome { lost: 0, refused: 0 };
    for (group, name) in groups.collect::<Vec<_>>().into_iter().zip(&names) {
        outcome.refused += group.await??;
        let left = open(store, name).await?.read(None).await?.context("a number")?;
        outcome.lost += i64::from(WRITES_PER_WORKER) * WORKERS_PER_GROUP as i64 - left;
    }
    Ok(outcome)
}

/// Whether it is the lock that fences, and not a comparison of tokens.
fn is_server_of_locks(store: &str) -> bool {
    ["consul", "etcd", "zk"].iter().any(|scheme| store.starts_with(&format!("{scheme}://")))
}

/// The URL of the locks: on the same server if it is the lock that fences, else in a file. Their
/// leases are short, because each pause has to outlast one, and long enough that a holder which is
/// not stopped keeps its lock on a busy machine, most times; if it does not, no update is lost
/// either.
fn locks_for(store: &str, folder: &Path) -> String {
    if !is_server_of_locks(store) {
        return format!("sqlite://{}/locks.db?ttl=400ms&outage=60s", folder.display());
    }
    // Consul ends a session after one or two times its ttl.
    let session = if store.starts_with("zk") { "session=2s&" } else { "" };
    format!("{store}?{session}ttl=2s&outage=60s")
}

/// The workers of one resource, and which of them is stopped.
struct Group {
    workers: Vec<Worker>,
    reports: Receiver<(usize, Result<Report>)>,
    stopped: Option<(usize, FencingToken)>,
    pauses: u32,
    working: usize,
    refused: u32,
}

impl Group {
    fn start(job: &Job) -> Result<Group> {
        let (sender, reports) = channel();
        let workers = (0..WORKERS_PER_GROUP).map(|number| start(job, number, sender.clone()));
        let workers: Vec<_> = workers.collect::<Result<_>>()?;
        let working = workers.len();
        Ok(Group { workers, reports, stopped: None, pauses: 0, working, refused: 0 })
    }

    /// Runs until all workers are done; returns how often they were refused.
    fn run(mut self) -> Result<u32> {
        while self.working > 0 {
            let (number, report) = self.reports.recv().context("a report of a worker")?;
            match report? {
                Report::Read(token) => self.on_read(number, token)?,
                Report::Wrote(token) => self.on_write(number, token)?,
                Report::Done(refused) => {
                    self.working -= 1;
                    self.refused += refused;
                    // No other worker is left that could acquire the lock.
                    if let Some((stopped, _)) = self.stopped {
                        self.resume(stopped)?;
                    }
                }
            }
        }
        ensure!(self.pauses == PAUSES_PER_GROUP, "only {} pauses", self.pauses);
        Ok(self.refused)
    }

    /// A holder has read. While pauses are left, and another worker to acquire the lock, it is
    /// stopped here.
    fn on_read(&mut self, number: usize, token: FencingToken) -> Result<()> {
        let others = self.working == self.workers.len();
        if self.stopped.is_none() && others && self.pauses < PAUSES_PER_GROUP {
            self.workers[number].signal(Signal::STOP)?;
            self.stopped = Some((number, token));
            self.pauses += 1;
        }
        // A stopped worker finds this in its input when it resumes: the write is what it does next.
        self.workers[number].go()
    }

    /// A holder has written. If it came after the stopped one, that one may resume.
    fn on_write(&mut self, number: usize, token: FencingToken) -> Result<()> {
        match self.stopped {
            // A report from before the stop may be read after it; the token tells.
            Some((stopped, its)) if stopped != number && token > its => self.resume(stopped),
            _ => Ok(()),
        }
    }

    fn resume(&mut self, stopped: usize) -> Result<()> {
        self.stopped = None;
        self.workers[stopped].signal(Signal::CONT)
    }
}

/// Starts a worker and forwards its reports.
fn start(job: &Job, number: usize, sender: Sender<(usize, Result<Report>)>) -> Result<Worker> {
    let (worker, mut reports) = Worker::start(job)?;
    thread::spawn(move || {
        loop {
            let report = reports.next();
            let is_last = matches!(report, Err(_) | Ok(Report::Done(_)));
            if sender.send((number, report)).is_err() || is_last {
                break;
            }
        }
    });
    Ok(worker)
}
