//! Seeded schedules of delays, cuts, evictions, downgrades and cancelled acquires, on a paused
//! clock: of a lock alone, of a lock with readers, and of a semaphore. It is checked that no more
//! hold at a time than fit together by their own guards, that tokens grow, and that nothing remains
//! at the end.
//!
//! `TENURE_SEED=17 cargo test -p tenure-conformance --test simulation` runs one seed again, and
//! `TENURE_SEEDS=10000` runs more of them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::backend::{Backend, Mode, Scope};
use tenure::backends::Memory;
use tenure::{Attempt, Client, Config, FencingToken, Guard, Lease, Lock, Permit, Semaphore};
use tenure_conformance::fault::{Cut, Faults, Faulty};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(9);
const CLIENTS: usize = 3;
const TASKS: usize = 8;
const STEPS: usize = 25;
const PERMITS: u32 = 4;

/// What the key is in a schedule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Exclusive,
    Shared,
    Semaphore,
}

/// What a task holds.
enum Held {
    Guard(Guard),
    Permit(Permit),
}

#[test]
fn no_schedule_breaks_a_guarantee() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("TENURE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TENURE_SEEDS").unwrap_or(60),
    };
    for kind in [Kind::Exclusive, Kind::Shared, Kind::Semaphore] {
        let mut total = Counts::default();
        for seed in seeds.clone() {
            total += run(seed, kind);
        }
        println!("{} schedules, {total:?}", seeds.end - seeds.start);
        total.check(kind, seeds.end - seeds.start);
    }
}

/// What happened in a schedule: a schedule in which nothing happens proves nothing.
#[derive(Debug, Default)]
struct Counts {
    grants: u64,
    /// Grants beside other holders.
    together: u64,
    downgrades: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.grants += other.grants;
        self.together += other.together;
        self.downgrades += other.downgrades;
    }
}

impl Counts {
    fn check(&self, kind: Kind, schedules: u64) {
        assert!(self.grants > 10 * schedules, "the schedules hardly grant anything");
        let alone = kind == Kind::Exclusive;
        assert!(alone != (self.together > schedules), "{} were held together", self.together);
        let downgrades = self.downgrades > schedules / 2;
        assert!(downgrades == (kind == Kind::Shared), "{} downgrades", self.downgrades);
    }
}

fn run(seed: u64, kind: Kind) -> Counts {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime can be built");
    runtime.block_on(async {
        let schedule = Arc::new(Schedule::new(seed, kind));
        let nemesis = tokio::spawn(run_nemesis(schedule.clone(), Random::new(seed, 1000)));
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            tasks.spawn(run_task(schedule.clone(), task, Random::new(seed, task as u64)));
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        nemesis.abort();
        schedule.settle().await;
        schedule.counts()
    })
}

/// The store, the clients with their connections to it, and the checker.
struct Schedule {
    seed: u64,
    kind: Kind,
    memory: Memory,
    connections: Vec<Arc<Faulty<Memory>>>,
    clients: Vec<Client>,
    checker: Mutex<Checker>,
}

#[derive(Default)]
struct Checker {
    holders: Vec<Lease>,
    evicted: Vec<FencingToken>,
    /// The highest token of an exclusive grant, and of any grant.
    last_writer: Option<FencingToken>,
    last: Option<FencingToken>,
    counts: Counts,
}

impl Schedule {
    fn new(seed: u64, kind: Kind) -> Schedule {
        let memory = Memory::new();
        let mut random = Random::new(seed, 2000);
        let connect = |_| {
            let delay = Duration::from_millis(random.below(400));
            let faults = Faults { delay, lose_every: random.below(8), hints: random.below(3) > 0 };
            Arc::new(Faulty::new(memory.clone(), faults))
        };
        let connections: Vec<_> = (0..CLIENTS).map(connect).collect();
        let client = |connection: &Arc<Faulty<Memory>>| {
            Config::default().ttl(TTL).with_backend(connection.clone())
        };
        let clients = connections.iter().map(client).collect();
        Schedule { seed, kind, memory, connections, clients, checker: Mutex::default() }
    }

    /// A lock in one of the modes of this schedule.
    fn lock(&self, task: usize, random: &mut Random) -> Lock {
        let lock = self.clients[task % CLIENTS].lock("k");
        let shared = self.kind == Kind::Shared && random.below(3) > 0;
        if shared { lock.shared() } else { lock }
    }

    fn semaphore(&self, task: usize, random: &mut Random) -> Semaphore {
        let take = 1 + random.below(PERMITS.into()) as u32;
        self.clients[task % CLIENTS].semaphore("k", PERMITS).permits(take)
    }

    /// Checks a new grant against the earlier ones.
    fn check_grant(&self, lease: &Lease) {
        let mut checker = self.checker.lock().expect("no panic while it is locked");
        let seed = self.seed;
        let (token, mode) = (lease.token(), lease.mode());
        if lease.check().is_err() || checker.evicted.contains(&token) {
            return;
        }
        checker.holders.retain(|held| held.check().is_ok());
        let others: Vec<_> =
            checker.holders.iter().map(|held| (held.token(), held.mode())).collect();
        let used: u64 = others.iter().map(|(_, mode)| u64::from(mode.weight())).sum();
        let fits = used + u64::from(mode.weight()) <= u64::from(mode.limit());
        assert!(fits, "seed {seed}: {token:?} ({mode}) holds at the same time as {others:?}");
        checker.check_token(seed, token, mode);
        checker.holders.push(lease.clone());
        checker.counts.grants += 1;
        checker.counts.together += u64::from(!others.is_empty());
    }

    fn count_downgrade(&self) {
        self.checker.lock().expect("no panic while it is locked").counts.downgrades += 1;
    }

    /// Records an eviction. The evicted holder believes that it holds until it is notified; only a
    /// fence helps against that.
    fn record_eviction(&self, token: FencingToken) {
        let mut checker = self.checker.lock().expect("no panic while it is locked");
        checker.holders.retain(|held| held.token() != token);
        checker.evicted.push(token);
    }

    /// Opens all connections: then all releases are completed, and no lock remains.
    async fn settle(&self) {
        self.connections.iter().for_each(|connection| connection.cut(Cut::Open));
        for client in &self.clients {
            // Fails while a release is past its lease and still repeated.
            while client.flush().await.is_err() {
                sleep(TTL / 10).await;
            }
        }
        sleep(TTL * 3).await;
        let left = self.memory.list(Scope::Prefix("")).await.expect("listing memory cannot fail");
        assert!(left.is_empty(), "seed {}: left {left:?}", self.seed);
    }

    fn counts(&self) -> Counts {
        std::mem::take(&mut self.checker.lock().expect("no panic while it is locked").counts)
    }
}

impl Checker {
    /// A writer is above all grants before it, a reader above all writers before it.
    fn check_token(&mut self, seed: u64, token: FencingToken, mode: Mode) {
        let floor = match mode {
            Mode::Exclusive => self.last,
            _ => self.last_writer,
        };
        assert!(floor < Some(token), "seed {seed}: {token:?} ({mode}) came after {floor:?}");
        self.last = self.last.max(Some(token));
        if mode == Mode::Exclusive {
            self.last_writer = Some(token);
        }
    }
}

impl Held {
    fn lease(&self) -> Lease {
        match self {
            Held::Guard(guard) => guard.lease().clone(),
            Held::Permit(permit) => permit.lease().clone(),
        }
    }

    async fn release(self) -> tenure::Result<()> {
        match self {
            Held::Guard(guard) => guard.release().await,
            Held::Permit(permit) => permit.release().await,
        }
    }
}

/// One task: acquires by all methods that there are, and releases in all ways that there are.
async fn run_task(schedule: Arc<Schedule>, task: usize, mut random: Random) {
    for _ in 0..STEPS {
        sleep(random.millis(3000)).await;
        let held = match schedule.kind {
            Kind::Semaphore => acquire_permits(&schedule, task, &mut random).await,
            Kind::Exclusive | Kind::Shared => acquire_lock(&schedule, task, &mut random).await,
        };
        let Some(mut held) = held else { continue };
        let lease = held.lease();
        schedule.check_grant(&lease);
        let longest = if random.below(6) == 0 { 20_000 } else { 1500 };
        let span = random.millis(longest);
        let _ignored = lease.while_held(sleep(span)).await;
        if schedule.kind == Kind::Shared && random.below(2) == 0 {
            downgrade(&schedule, &mut held, &mut random).await;
        }
        if random.below(3) == 0 {
            drop(held);
        } else {
            // May be lost, or not confirmed.
            let _ignored = held.release().await;
        }
    }
}

async fn acquire_lock(schedule: &Schedule, task: usize, random: &mut Random) -> Option<Held> {
    let lock = schedule.lock(task, random);
    let guard = match random.below(4) {
        0 => granted(lock.try_acquire().await),
        1 => granted(lock.acquire_within(random.millis(5000)).await),
        // Dropped at any point.
        2 => tokio::time::timeout(random.millis(6000), lock.acquire()).await.ok()?.ok(),
        _ => lock.without_renewal().acquire().await.ok(),
    };
    guard.map(Held::Guard)
}

async fn acquire_permits(schedule: &Schedule, task: usize, random: &mut Random) -> Option<Held> {
    let semaphore = schedule.semaphore(task, random);
    let permit = match random.below(4) {
        0 => granted(semaphore.try_acquire().await),
        1 => granted(semaphore.acquire_within(random.millis(5000)).await),
        2 => tokio::time::timeout(random.millis(6000), semaphore.acquire()).await.ok()?.ok(),
        _ => semaphore.without_renewal().acquire().await.ok(),
    };
    permit.map(Held::Permit)
}

/// A downgrade that may be dropped at any point, and after which the lock is held a little longer.
async fn downgrade(schedule: &Schedule, held: &mut Held, random: &mut Random) {
    let Held::Guard(guard) = held else { return };
    if guard.mode() != Mode::Exclusive || guard.check().is_err() {
        return;
    }
    schedule.count_downgrade();
    let patience = random.millis(1000);
    // May be lost, not confirmed, or dropped.
    let _ignored = tokio::time::timeout(patience, guard.downgrade()).await;
    sleep(random.millis(1500)).await;
}

fn granted<T>(attempt: tenure::Result<Attempt<T>>) -> Option<T> {
    attempt.ok()?.granted().ok()
}

/// Cuts and opens connections, and evicts holders.
async fn run_nemesis(schedule: Arc<Schedule>, mut random: Random) {
    loop {
        sleep(random.millis(8000)).await;
        let cuts = [Cut::Responses, Cut::Hung, Cut::Refused, Cut::Renewals, Cut::Open, Cut::Open];
        let connection = &schedule.connections[random.below(CLIENTS as u64) as usize];
        connection.cut(cuts[random.below(6) as usize]);
        if random.below(4) == 0 {
            let holdings = schedule.memory.list(Scope::Prefix("")).await.unwrap_or_default();
            for held in holdings {
                let holder = &held.holders[random.below(held.holders.len() as u64) as usize];
                if let Some(token) = holder.token {
                    schedule.record_eviction(token);
                    let _ignored = schedule.memory.evict(&held.key, token).await;
                }
            }
        }
        // No client stays cut off for ever: the run has to end.
        let opened = &schedule.connections[random.below(CLIENTS as u64) as usize];
        opened.cut(Cut::Open);
    }
}

/// Numbers that depend on the seed alone.
struct Random(u64);

impl Random {
    fn new(seed: u64, salt: u64) -> Random {
        Random(
            (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (salt + 1).wrapping_mul(0xbf58_476d),
        )
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn millis(&mut self, end: u64) -> Duration {
        Duration::from_millis(self.below(end))
    }
}
