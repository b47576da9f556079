//! Seeded schedules of delays, cuts, evictions and cancelled acquires, on a paused clock. It is
//! checked that no two clients hold at once by their own guards, that tokens grow, and that no lock
//! remains at the end.
//!
//! `TENURE_SEED=17 cargo test -p tenure-conformance --test simulation` runs one seed again, and
//! `TENURE_SEEDS=10000` runs more of them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::backend::{Backend, Scope};
use tenure::backends::Memory;
use tenure::{Attempt, Client, Config, FencingToken, Guard, Lease, Lock};
use tenure_conformance::fault::{Cut, Faults, Faulty};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(9);
const CLIENTS: usize = 3;
const TASKS: usize = 8;
const STEPS: usize = 25;

#[test]
fn no_schedule_breaks_a_guarantee() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("TENURE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TENURE_SEEDS").unwrap_or(60),
    };
    let mut grants = 0;
    for seed in seeds.clone() {
        grants += run(seed);
    }
    println!("{} schedules, {grants} grants", seeds.end - seeds.start);
    assert!(grants > 10 * (seeds.end - seeds.start), "the schedules hardly grant anything");
}

fn run(seed: u64) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime can be built");
    runtime.block_on(async {
        let schedule = Arc::new(Schedule::new(seed));
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
        schedule.grants()
    })
}

/// The store, the clients with their connections to it, and the checker.
struct Schedule {
    seed: u64,
    memory: Memory,
    connections: Vec<Arc<Faulty<Memory>>>,
    clients: Vec<Client>,
    checker: Mutex<Checker>,
}

#[derive(Default)]
struct Checker {
    holders: Vec<Lease>,
    evicted: Vec<FencingToken>,
    last: Option<FencingToken>,
    grants: u64,
}

impl Schedule {
    fn new(seed: u64) -> Schedule {
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
        Schedule { seed, memory, connections, clients, checker: Mutex::default() }
    }

    fn lock(&self, task: usize) -> Lock {
        self.clients[task % CLIENTS].lock("k")
    }

    /// Checks a new guard against the earlier ones.
    fn check_grant(&self, guard: &Guard) {
        let mut checker = self.checker.lock().expect("no panic while it is locked");
        let seed = self.seed;
        let token = guard.token();
        if guard.check().is_err() || checker.evicted.contains(&token) {
            return;
        }
        let others: Vec<_> =
            checker.holders.iter().filter(|held| held.check().is_ok()).map(Lease::token).collect();
        assert!(others.is_empty(), "seed {seed}: {token:?} holds at the same time as {others:?}");
        let last = checker.last.replace(token);
        assert!(last < Some(token), "seed {seed}: {token:?} came after {last:?}");
        checker.holders = vec![guard.lease().clone()];
        checker.grants += 1;
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

    fn grants(&self) -> u64 {
        self.checker.lock().expect("no panic while it is locked").grants
    }
}

/// One task: acquires by all methods that there are, and releases in all ways that there are.
async fn run_task(schedule: Arc<Schedule>, task: usize, mut random: Random) {
    for _ in 0..STEPS {
        sleep(random.millis(3000)).await;
        let lock = schedule.lock(task);
        let guard = match random.below(4) {
            0 => granted(lock.try_acquire().await),
            1 => granted(lock.acquire_within(random.millis(5000)).await),
            // Dropped at any point.
            2 => match tokio::time::timeout(random.millis(6000), lock.acquire()).await {
                Ok(guard) => guard.ok(),
                Err(_) => None,
            },
            _ => lock.without_renewal().acquire().await.ok(),
        };
        let Some(guard) = guard else { continue };
        schedule.check_grant(&guard);
        let lease = guard.lease().clone();
        let longest = if random.below(6) == 0 { 20_000 } else { 1500 };
        let span = random.millis(longest);
        let _ignored = lease.while_held(sleep(span)).await;
        if random.below(3) == 0 {
            drop(guard);
        } else {
            // May be lost, or not confirmed.
            let _ignored = guard.release().await;
        }
    }
}

fn granted(attempt: tenure::Result<Attempt<Guard>>) -> Option<Guard> {
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
                if let Some(token) = held.holder().token {
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
