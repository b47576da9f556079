//! The library's own core on a virtual clock: seeded schedules of delays, losses, stops, crashes
//! and clock jumps, thousands of them, each with the lab's own history and checkers.
//!
//! Client, waiting, renewal, withdrawal and guard are the real code. The server is a model of any
//! server that keeps a lease on a clock of its own. A seed gives the same schedule again.

mod dice;
mod server;
mod way;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::check::{self, Report};
use crate::history::{Header, History, Kind, Lane};

use self::world::{LEASE, World};

/// One schedule that was played.
#[derive(Debug)]
pub struct Played {
    /// What happened.
    pub history: History,
    /// What the checkers found.
    pub report: Report,
    /// The promise that was broken, if one was.
    pub failure: Option<String>,
    /// Whether the server kept its word, so that nobody may have held beside another.
    pub honest: bool,
}

/// Plays the schedule of a seed.
///
/// # Examples
///
/// ```
/// let played = tenure_lab::simulation::play(17);
/// assert_eq!(played.failure, None);
/// assert!(played.report.granted > 0);
/// ```
pub fn play(seed: u64) -> Played {
    play_on(seed, false)
}

/// Plays a schedule on a server that is broken on purpose, or not.
fn play_on(seed: u64, broken: bool) -> Played {
    // No I/O: then advancing the clock costs no system call.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let (events, honest, stuck) = match runtime {
        Err(error) => (Vec::new(), true, Err(format!("cannot start a runtime: {error}"))),
        Ok(runtime) => runtime.block_on(async {
            let world = Arc::new(World::new(broken));
            let limit = Duration::from_secs(3600);
            let ended = tokio::time::timeout(limit, world.clone().play(seed)).await;
            let ended = ended.unwrap_or_else(|_| Err("the schedule came to no end".to_owned()));
            let (events, honest) = world.story();
            (events, honest, ended)
        }),
    };
    let history = History::new(header(seed), events);
    let report = check::check(&history);
    let failure = stuck.err().or_else(|| broken_promise(&report, honest));
    Played { history, report, failure, honest }
}

fn header(seed: u64) -> Header {
    let lane = |name: String| Lane { name, kind: Kind::Client };
    Header {
        scenario: "simulation".to_owned(),
        about: "A seeded schedule of faults on a virtual clock.".to_owned(),
        lock: "tenure".to_owned(),
        server: "simulated".to_owned(),
        seed,
        expected: "holds|stuck|longer|overlap".to_owned(),
        lease: LEASE.as_nanos() as u64,
        lanes: World::names().map(lane).collect(),
    }
}

/// What no schedule may show: tokens that do not grow, an update lost behind the fence, and, while
/// the server keeps its word, two holders inside their deadlines.
fn broken_promise(report: &Report, honest: bool) -> Option<String> {
    let (tokens, fenced) = (&report.tokens, &report.resource.read_write);
    if !tokens.sound() {
        return Some(format!("tokens do not grow: {:?}", tokens.first));
    }
    if fenced.lost > 0 {
        return Some(format!("{} updates lost behind the read+write fence", fenced.lost));
    }
    if honest && report.overlap.certain.count > 0 {
        let first = &report.overlap.certain.first[0];
        return Some(format!("attempts {:?} held at the same time", first.holds));
    }
    if honest && report.linear.broken > 0 {
        return Some(format!("no order explains it: {:?}", report.linear.first));
    }
    None
}

/// What a campaign has seen.
#[derive(Clone, Debug, Default)]
pub struct Campaign {
    /// Schedules that were played.
    pub schedules: u64,
    /// Grants in them.
    pub grants: u64,
    /// Faults in them.
    pub faults: u64,
    /// Updates that the register without a fence lost: the proof that the faults bite.
    pub lost: u64,
    /// How long it took.
    pub took: Duration,
    /// The lowest seed that failed, and why.
    pub failure: Option<(u64, String)>,
}

/// Plays schedules from a seed on, on every core, until so many are played, the time is over or one
/// fails.
pub fn campaign(first: u64, schedules: u64, time: Option<Duration>) -> Campaign {
    let begin = Instant::now();
    let (next, failed) = (AtomicU64::new(first), AtomicBool::new(false));
    let work = || {
        let mut seen = Campaign::default();
        while !failed.load(Ordering::Relaxed) && time.is_none_or(|time| begin.elapsed() < time) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed - first >= schedules {
                break;
            }
            let played = play(seed);
            seen.schedules += 1;
            seen.grants += played.report.granted;
            seen.faults += played.report.faults;
            seen.lost += played.report.resource.plain.lost;
            if let Some(why) = played.failure {
                seen.failure = Some((seed, why));
                failed.store(true, Ordering::Relaxed);
            }
        }
        seen
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut all = Campaign::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            match worker.join() {
                Ok(seen) => all.add(seen),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    all.took = begin.elapsed();
    all
}

impl Campaign {
    fn add(&mut self, other: Campaign) {
        self.schedules += other.schedules;
        self.grants += other.grants;
        self.faults += other.faults;
        self.lost += other.lost;
        let failures = self.failure.take().into_iter().chain(other.failure);
        self.failure = failures.min_by_key(|(seed, _)| *seed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_schedule_breaks_a_promise() {
        let seen = campaign(0, 300, None);
        println!("{seen:?}");
        assert_eq!(seen.failure, None, "see it with `tenure lab simulate --seed N`");
        assert!(seen.grants > 10 * seen.schedules, "the schedules hardly grant anything");
        assert!(seen.lost > 0, "the faults do no harm to anybody: they prove nothing");
    }

    #[test]
    fn a_seed_plays_the_same_schedule_again() {
        for seed in 0..60 {
            let (one, two) = (play(seed), play(seed));
            assert!(one.history == two.history, "seed {seed} gave two histories");
        }
    }

    #[test]
    fn a_server_that_gives_the_lock_away_twice_is_found() {
        let found = (0..20).filter(|&seed| play_on(seed, true).failure.is_some()).count();
        assert!(found >= 5, "only {found} of 20 schedules saw it");
    }
}
