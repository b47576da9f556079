//! Readers, writers and permits while the server is killed, its clock is set, and its tables are
//! swept.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::backend::Mode;
use tenure::{FencingToken, Lease, Lock};
use tenure_conformance::context::{soon, until, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;
use tenure_servers::wire::mysql::Mysql;
use tokio::task::JoinSet;

use crate::{acquire, admin, client};

server_cases! {
    a_killed_server_never_mixes_readers_and_writers Mariadb;
    setting_the_clock_neither_lowers_tokens_nor_loses_readers Mariadb |options| options.clock();
    readers_and_writers_cause_no_deadlock Mariadb;
}

/// How long a server may need until it grants again.
const RECOVERY: Duration = Duration::from_secs(60);

/// Tasks that hold one lock in both modes, and check with whom.
#[derive(Default)]
struct Mixed {
    stop: AtomicBool,
    grants: AtomicU64,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    leases: Vec<(Mode, Lease)>,
    highest: Option<FencingToken>,
    highest_of_writers: Option<FencingToken>,
}

impl Inside {
    /// Fails if the lease excludes another that is held, or its token is too low.
    fn enter(&mut self, mode: Mode, lease: &Lease) -> Result<()> {
        let token = Some(lease.token());
        let excludes = |other: &Mode| mode == Mode::Exclusive || *other == Mode::Exclusive;
        let alone =
            !self.leases.iter().any(|(other, held)| excludes(other) && held.check().is_ok());
        let floor = if mode == Mode::Exclusive { self.highest } else { self.highest_of_writers };
        self.highest = self.highest.max(token);
        if mode == Mode::Exclusive {
            self.highest_of_writers = self.highest_of_writers.max(token);
        }
        self.leases.push((mode, lease.clone()));
        ensure!(alone, "a writer and another hold");
        ensure!(token > floor, "{token:?} ({mode}) came after {floor:?}");
        Ok(())
    }
}

impl Mixed {
    async fn turn(&self, lock: &Lock, mode: Mode) -> Result<()> {
        let lock = if mode == Mode::Shared { lock.clone().shared() } else { lock.clone() };
        let Ok(guard) = lock.acquire().await else { return Ok(()) };
        let inside = || self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let trouble = inside().enter(mode, guard.lease());
        tokio::task::yield_now().await;
        // A holder that has lost its lock may find the next one inside.
        let held = guard.check();
        inside().leases.retain(|(_, lease)| lease.token() != guard.token());
        if held.is_ok() {
            trouble?;
        }
        self.grants.fetch_add(1, Ordering::SeqCst);
        drop(guard.release().await);
        Ok(())
    }

    async fn go_on(&self, more: u64) -> Result<()> {
        let goal = self.grants.load(Ordering::SeqCst) + more;
        let reached = || self.grants.load(Ordering::SeqCst) >= goal;
        until(RECOVERY, "more grants", async || Ok(reached().then_some(()))).await
    }
}

/// Starts a task for each of these locks; two of three turns are shared.
fn start(locks: Vec<Lock>) -> (Arc<Mixed>, JoinSet<Result<()>>) {
    let mixed = Arc::<Mixed>::default();
    let mut tasks = JoinSet::new();
    for (number, lock) in locks.into_iter().enumerate() {
        let mixed = mixed.clone();
        tasks.spawn(async move {
            let mut round = number;
            while !mixed.stop.load(Ordering::SeqCst) {
                round += 1;
                let mode = if round.is_multiple_of(3) { Mode::Exclusive } else { Mode::Shared };
                mixed.turn(&lock, mode).await?;
            }
            Ok(())
        });
    }
    (mixed, tasks)
}

async fn finish(mixed: &Mixed, mut tasks: JoinSet<Result<()>>) -> Result<()> {
    mixed.stop.store(true, Ordering::SeqCst);
    while let Some(task) = soon("the end of a task", tasks.join_next()).await? {
        task??;
    }
    Ok(())
}

async fn a_killed_server_never_mixes_readers_and_writers(cluster: &Cluster) -> Result<()> {
    let mut locks = Vec::new();
    for _ in 0..6 {
        locks.push(client(cluster, "").await?.lock("k").ttl(Duration::from_secs(4)));
    }
    let (mixed, tasks) = start(locks);
    for _ in 0..2 {
        mixed.go_on(20).await?;
        cluster.node().kill()?;
        cluster.node().restart()?;
    }
    mixed.go_on(20).await?;
    finish(&mixed, tasks).await
}

/// A lease may end early or late; what was granted keeps its order, and the queue goes on.
async fn setting_the_clock_neither_lowers_tokens_nor_loses_readers(
    cluster: &Cluster,
) -> Result<()> {
    const HOUR: i64 = 3_600_000;
    let node = cluster.node();
    let ttl = Duration::from_secs(6);
    let one = client(cluster, "").await?.lock("k").ttl(ttl);
    let two = client(cluster, "").await?.lock("k").ttl(ttl);
    let mut last = None;
    for (before, under) in [(0, HOUR), (-HOUR, 0), (HOUR, -HOUR), (0, 2 * HOUR)] {
        node.shift_clock(before)?;
        let reader = acquire(&one.clone().shared()).await?;
        ensure!(Some(reader.token()) > last, "{} after {last:?}", reader.token());
        let waiting = tokio::spawn(two.acquire());
        until_waiters(&one, 1).await?;
        node.shift_clock(under)?;
        // A lease may be over by the server's clock.
        drop(soon("release", reader.release()).await?);
        let writer = soon("the writer's grant", waiting).await???;
        let reader = acquire_behind(&one.clone().shared(), writer).await?;
        last = Some(reader.token());
        reader.release().await?;
    }
    node.shift_clock(0)?;
    Ok(())
}

/// Waits behind a writer, which then leaves.
async fn acquire_behind(lock: &Lock, writer: tenure::Guard) -> Result<tenure::Guard> {
    let waiting = tokio::spawn(lock.acquire());
    until_waiters(lock, 1).await?;
    let token = writer.token();
    writer.release().await?;
    let reader = soon("the reader's grant", waiting).await???;
    ensure!(reader.token() > token, "{} after {token}", reader.token());
    Ok(reader)
}

/// The order of locks is floor, row of the key, queue entries, holders. The sweep runs all the
/// time. On MySQL the short handoff of exclusive locks reads the queue with locks, before it has
/// that of the row: there are deadlocks, and the packets are repeated.
async fn readers_and_writers_cause_no_deadlock(cluster: &Cluster) -> Result<()> {
    let mut locks = [Vec::new(), Vec::new()];
    for number in 0..8 {
        let clients = client(cluster, "sweep=5ms").await?;
        // Short leases, so that renewals are under way too.
        let lock = clients.lock(format!("k/{}", number % 2)).ttl(Duration::from_millis(900));
        locks[number % 2].push(lock);
    }
    let mut admin = admin(cluster)?;
    let before = deadlocks(&mut admin).ok();
    let (one, two) = {
        let [one, two] = locks;
        (start(one), start(two))
    };
    one.0.go_on(150).await?;
    two.0.go_on(150).await?;
    finish(&one.0, one.1).await?;
    finish(&two.0, two.1).await?;
    if let Some(before) = before {
        let found = deadlocks(&mut admin)? - before;
        ensure!(found == 0, "{found} deadlocks");
    }
    Ok(())
}

/// MariaDB counts them.
fn deadlocks(admin: &mut Mysql) -> Result<u64> {
    crate::status(admin, "INNODB_DEADLOCKS")
}
