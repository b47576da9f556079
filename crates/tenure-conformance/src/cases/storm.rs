//! Random commands and faults, with the lease oracle as the judge: what no case was written for.
//!
//! `TENURE_STORM_SEED` plays the same commands again (the servers' own timing does not repeat), and
//! `TENURE_STORM_SECONDS` plays for longer.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use tenure::backend::Modes;
use tenure::{Attempt, Client, Guard, Key, Lock};
use tokio::time::{Instant, sleep, timeout};

use super::cases;
use crate::context::{SOON, TestContext, until};
use crate::network::Network;

/// How many of the faults in `trouble` are played: those that break no connection, or all.
const SILENT: u64 = 4;
const ALL: u64 = 6;
/// How many clients there are, and how many keys they want.
const ACTORS: usize = 4;
const KEYS: usize = 2;
/// How long it is played in a run of the whole suite.
const SECONDS: u64 = 6;

cases! { "storm":
    random_commands_and_faults_leave_one_holder_and_every_key_usable,
    random_readers_writers_and_permits_never_mix if |context| context.info().modes.shared,
}

async fn random_commands_and_faults_leave_one_holder_and_every_key_usable(
    context: &TestContext,
) -> Result<()> {
    let seed = number("TENURE_STORM_SEED").unwrap_or_else(seed_by_time);
    let seconds = number("TENURE_STORM_SECONDS").unwrap_or(SECONDS);
    let played = play(context, seed, Duration::from_secs(seconds), Modes::default()).await;
    played.map_err(|error| anyhow!("seed {seed}: {error:#}"))
}

async fn random_readers_writers_and_permits_never_mix(context: &TestContext) -> Result<()> {
    let seed = number("TENURE_STORM_SEED").unwrap_or_else(seed_by_time);
    let seconds = number("TENURE_STORM_SECONDS").unwrap_or(SECONDS);
    let modes = context.info().modes;
    let played = play(context, seed, Duration::from_secs(seconds), modes).await;
    played.map_err(|error| anyhow!("seed {seed}: {error:#}"))
}

async fn play(context: &TestContext, seed: u64, length: Duration, modes: Modes) -> Result<()> {
    context.ledger().look_at_every_belief();
    let end = Instant::now() + length;
    let mut random = Random(seed);
    let keys: Vec<Key> = (0..KEYS).map(|number| context.key(&format!("k{number}"))).collect();
    let (mut clients, mut networks) = (Vec::new(), Vec::new());
    for _ in 0..ACTORS {
        if context.has_network() {
            let network = Arc::new(context.network()?);
            clients.push(context.client_through(&network).await?);
            networks.push(network);
        } else {
            clients.push(context.client().await?);
        }
    }
    let mut tasks = tokio::task::JoinSet::new();
    for client in &clients {
        let actor = Actor {
            client: client.clone(),
            keys: keys.clone(),
            permits: context.key("permits"),
            modes,
            ttl: context.short_ttl(),
            random: random.split(),
        };
        tasks.spawn(actor.act(end));
    }
    // Where a connection holds the lock, one that breaks frees it: no fault of the server.
    let faults = if context.hangs_on_a_connection() { SILENT } else { ALL };
    for network in &networks {
        tasks.spawn(trouble(network.clone(), faults, context.short_ttl(), random.split(), end));
    }
    while tasks.join_next().await.transpose()?.is_some() {}
    context.ledger().verdict().await?;
    for client in &clients {
        for key in &keys {
            usable(context, client, key).await?;
        }
    }
    Ok(())
}

/// One client: acquires, holds, waits, cancels, releases, drops and evicts.
struct Actor {
    client: Client,
    keys: Vec<Key>,
    /// The key of a semaphore.
    permits: Key,
    /// Which modes are played besides the exclusive one.
    modes: Modes,
    ttl: Duration,
    random: Random,
}

impl Actor {
    async fn act(mut self, end: Instant) {
        while Instant::now() < end {
            let lock = self.lock();
            // What fails in a storm fails; the oracle judges what did not.
            let step = async {
                if self.modes.permits && self.random.below(3) == 0 {
                    self.hold_permits().await;
                } else if let Some(guard) = self.acquire(&lock).await {
                    self.hold(&lock, guard).await;
                }
            };
            let _late = timeout(SOON, step).await;
        }
    }

    fn lock(&mut self) -> Lock {
        let key = self.random.choose(&self.keys).clone();
        let parts = Duration::from_nanos(self.random.below(1_000_000));
        let ttl = self.ttl * (1 + self.random.below(3) as u32) + parts;
        let lock = self.client.lock(key).ttl(ttl);
        let lock = if self.random.below(3) == 0 { lock.without_renewal() } else { lock };
        if self.modes.shared && self.random.below(2) == 0 { lock.shared() } else { lock }
    }

    async fn acquire(&mut self, lock: &Lock) -> Option<Guard> {
        let longest = self.random.millis(1500);
        let attempt = match self.random.below(4) {
            0 => lock.try_acquire().await,
            // Given up at any await.
            1 => timeout(self.random.millis(200), lock.acquire()).await.ok()?.map(Attempt::Granted),
            _ => lock.acquire_within(longest).await,
        };
        attempt.ok()?.granted().ok()
    }

    /// Acquires one or more permits, holds them, and returns or drops them.
    async fn hold_permits(&mut self) {
        let take = 1 + self.random.below(3) as u32;
        let semaphore = self.client.semaphore(self.permits.clone(), 4).permits(take).ttl(self.ttl);
        let longest = self.random.millis(600);
        let attempt = semaphore.acquire_within(longest).await;
        let Some(permit) = attempt.ok().and_then(|attempt| attempt.granted().ok()) else { return };
        let _lost = timeout(self.random.millis(300), permit.lost()).await;
        if self.random.below(4) == 0 {
            drop(permit);
        } else {
            drop(permit.release().await);
        }
    }

    async fn hold(&mut self, lock: &Lock, mut guard: Guard) {
        if self.modes.shared && self.random.below(3) == 0 {
            // Given up at any await, or awaited to its end.
            let longest = self.random.millis(400);
            let _begun = timeout(longest, guard.downgrade()).await;
        }
        let span = match self.random.below(8) {
            0 => self.ttl * 2,
            _ => self.random.millis(300),
        };
        let _lost = timeout(span, guard.lost()).await;
        match self.random.below(8) {
            0 => drop(guard),
            1 => drop(timeout(self.random.millis(3), guard.release()).await),
            2 => {
                drop(lock.evict(guard.token()).await);
                drop(guard);
            }
            _ => drop(guard.release().await),
        }
    }
}

/// One fault after another on the way of one client, some of them longer than its leases.
async fn trouble(
    network: Arc<Network>,
    faults: u64,
    ttl: Duration,
    mut random: Random,
    end: Instant,
) {
    while Instant::now() < end {
        sleep(random.millis(600)).await;
        match random.below(faults) {
            0 => network.delay(random.millis(60)),
            1 => network.cut(),
            2 => network.hold_requests(),
            3 => network.hold_responses(),
            4 => network.reset(),
            _ => network.swallow_response(),
        }
        let longest = u64::try_from(ttl.as_millis()).unwrap_or(1000) * 3 / 2;
        sleep(random.millis(longest)).await;
        network.heal();
    }
    network.heal();
}

/// After the storm the client gets the key.
async fn usable(context: &TestContext, client: &Client, key: &Key) -> Result<()> {
    let limit = context.short_ttl() * 6 * context.info().max_expiry_ttls + SOON;
    let acquire = || async {
        let attempt = client.lock(key.clone()).acquire_within(limit).await.ok();
        Ok(attempt.and_then(|attempt| attempt.granted().ok()))
    };
    let guard = until(limit, &format!("`{key}` after the storm"), acquire).await?;
    guard.release().await?;
    Ok(())
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn millis(&mut self, limit: u64) -> Duration {
        Duration::from_millis(self.below(limit) + 1)
    }

    fn choose<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }

    fn split(&mut self) -> Random {
        Random(self.next())
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn seed_by_time() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_secs() * 1_000 + u64::from(since.subsec_millis()))
}
