//! Seeded schedules of delays, cuts, evictions, cancelled and abandoned asks, on a paused clock.
//! One checker: nobody believes to hold while somebody else does, tokens grow, nothing is left
//! behind.
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
fn no_schedule_breaks_a_promise() {
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
        let world = Arc::new(World::new(seed));
        let nemesis = tokio::spawn(nemesis(world.clone(), Dice::new(seed, 1000)));
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            tasks.spawn(work(world.clone(), task, Dice::new(seed, task as u64)));
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        nemesis.abort();
        world.settle().await;
        world.grants()
    })
}

/// The store, the clients with their ways to it, and what is known of who holds.
struct World {
    seed: u64,
    memory: Memory,
    ways: Vec<Arc<Faulty<Memory>>>,
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

impl World {
    fn new(seed: u64) -> World {
        let (memory, mut dice) = (Memory::new(), Dice::new(seed, 2000));
        let way = |_| {
            let delay = Duration::from_millis(dice.below(400));
            let faults = Faults { delay, lose_every: dice.below(8), hints: dice.below(3) > 0 };
            Arc::new(Faulty::new(memory.clone(), faults))
        };
        let ways: Vec<_> = (0..CLIENTS).map(way).collect();
        let client = |way: &Arc<Faulty<Memory>>| Config::default().ttl(TTL).over(way.clone());
        let clients = ways.iter().map(client).collect();
        World { seed, memory, ways, clients, checker: Mutex::default() }
    }

    fn lock(&self, task: usize) -> Lock {
        self.clients[task % CLIENTS].lock("k")
    }

    /// Somebody was given a guard.
    fn enter(&self, guard: &Guard) {
        let mut checker = self.checker.lock().expect("no panic while it is locked");
        let (seed, token) = (self.seed, guard.token());
        if guard.check().is_err() || checker.evicted.contains(&token) {
            return;
        }
        let others: Vec<_> =
            checker.holders.iter().filter(|held| held.check().is_ok()).map(Lease::token).collect();
        assert!(others.is_empty(), "seed {seed}: {token:?} holds beside {others:?}");
        let last = checker.last.replace(token);
        assert!(last < Some(token), "seed {seed}: {token:?} came after {last:?}");
        checker.holders = vec![guard.lease().clone()];
        checker.grants += 1;
    }

    /// An evicted holder believes to hold until it is told: only the fence helps against that.
    fn evicted(&self, token: FencingToken) {
        let mut checker = self.checker.lock().expect("no panic while it is locked");
        checker.holders.retain(|held| held.token() != token);
        checker.evicted.push(token);
    }

    /// With the ways open again, everything ends and nothing is left.
    async fn settle(&self) {
        self.ways.iter().for_each(|way| way.cut(Cut::Open));
        for client in &self.clients {
            // What is past its lease is not waited for, but still repeated.
            while client.flush().await.is_err() {
                sleep(TTL / 10).await;
            }
        }
        sleep(TTL * 3).await;
        let left = self.memory.list(Scope::Prefix("")).await.expect("memory always answers");
        assert!(left.is_empty(), "seed {}: left {left:?}", self.seed);
    }

    fn grants(&self) -> u64 {
        self.checker.lock().expect("no panic while it is locked").grants
    }
}

/// One user: asks in every way there is, and leaves in every way there is.
async fn work(world: Arc<World>, task: usize, mut dice: Dice) {
    for _ in 0..STEPS {
        sleep(dice.millis(3000)).await;
        let lock = world.lock(task);
        let guard = match dice.below(4) {
            0 => granted(lock.try_acquire().await),
            1 => granted(lock.acquire_within(dice.millis(5000)).await),
            // Dropped in the middle, wherever that is.
            2 => match tokio::time::timeout(dice.millis(6000), lock.acquire()).await {
                Ok(guard) => guard.ok(),
                Err(_) => None,
            },
            _ => lock.without_renewal().acquire().await.ok(),
        };
        let Some(guard) = guard else { continue };
        world.enter(&guard);
        let lease = guard.lease().clone();
        let longest = if dice.below(6) == 0 { 20_000 } else { 1500 };
        let span = dice.millis(longest);
        let _lost = lease.while_held(sleep(span)).await;
        match dice.below(3) {
            0 => drop(guard),
            _ => {
                let _lost_or_unconfirmed = guard.release().await;
            }
        }
    }
}

fn granted(attempt: tenure::Result<Attempt<Guard>>) -> Option<Guard> {
    attempt.ok()?.granted().ok()
}

/// Cuts and heals the ways, and evicts whoever holds.
async fn nemesis(world: Arc<World>, mut dice: Dice) {
    loop {
        sleep(dice.millis(8000)).await;
        let cuts = [Cut::Answers, Cut::Hung, Cut::Refused, Cut::Renewals, Cut::Open, Cut::Open];
        let way = &world.ways[dice.below(CLIENTS as u64) as usize];
        way.cut(cuts[dice.below(6) as usize]);
        if dice.below(4) == 0 {
            let holdings = world.memory.list(Scope::Prefix("")).await.unwrap_or_default();
            for held in holdings {
                if let Some(token) = held.holder.token {
                    world.evicted(token);
                    let _gone = world.memory.evict(&held.key, token).await;
                }
            }
        }
        // Nobody stays cut off for ever: the run has to end.
        let healed = &world.ways[dice.below(CLIENTS as u64) as usize];
        healed.cut(Cut::Open);
    }
}

/// Numbers that depend on the seed alone.
struct Dice(u64);

impl Dice {
    fn new(seed: u64, salt: u64) -> Dice {
        Dice((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (salt + 1).wrapping_mul(0xbf58_476d))
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
