//! The library's core on a virtual clock: seeded schedules of delays, losses, stops, crashes and
//! clock jumps, thousands of them, each with a history and the lab's checkers.
//!
//! Acquire, waiting, renewal, cancellation and guard are the real code. The server is a model of
//! any server that keeps a lease on a clock of its own. A seed always gives the same schedule.
//!
//! - `schedule`: the clients, the nemesis that injects faults, and the history.
//! - `connection`: the unreliable connection of a client to the server.
//! - `server`: the model of a server.
//! - `random`: random numbers from the seed.

mod connection;
mod random;
mod schedule;
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::check::{self, Report};
use crate::history::{Header, History, Lane, LaneKind};

use self::schedule::{LEASE, Schedule};

/// The longest virtual time of a schedule: one that takes longer has no end.
const LONGEST: Duration = Duration::from_secs(3600);

/// The result of one schedule.
#[derive(Debug)]
pub struct ScheduleResult {
    /// What happened.
    pub history: History,
    /// What the checkers found.
    pub report: Report,
    /// The guarantee that was broken, if one was.
    pub failure: Option<String>,
    /// Whether the server kept every lease to its end, so that no two clients may have held at
    /// once.
    pub server_kept_leases: bool,
}

/// Runs the schedule of a seed.
///
/// # Examples
///
/// ```
/// let result = tenure_lab::simulation::run(17);
/// assert_eq!(result.failure, None);
/// assert!(result.report.granted > 0);
/// ```
pub fn run(seed: u64) -> ScheduleResult {
    run_on(seed, false)
}

/// Runs a schedule on a server that is broken on purpose, or not.
fn run_on(seed: u64, broken: bool) -> ScheduleResult {
    // Without I/O, advancing the clock takes no system call.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let (events, server_kept_leases, ended) = match runtime {
        Err(error) => (Vec::new(), true, Err(format!("cannot start a runtime: {error}"))),
        Ok(runtime) => runtime.block_on(async {
            let schedule = Arc::new(Schedule::new(broken));
            let ended = tokio::time::timeout(LONGEST, schedule.clone().run(seed)).await;
            let ended = ended.unwrap_or_else(|_| Err("the schedule came to no end".to_owned()));
            let (events, server_kept_leases) = schedule.take_events();
            (events, server_kept_leases, ended)
        }),
    };
    let history = History::new(header(seed), events);
    let report = check::check(&history);
    let failure = ended.err().or_else(|| broken_guarantee(&report, server_kept_leases));
    ScheduleResult { history, report, failure, server_kept_leases }
}

fn header(seed: u64) -> Header {
    let lane = |name: String| Lane { name, kind: LaneKind::Client };
    Header {
        scenario: "simulation".to_owned(),
        about: "A seeded schedule of faults on a virtual clock.".to_owned(),
        lock: "tenure".to_owned(),
        server: "simulated".to_owned(),
        seed,
        expected: "holds|stuck|longer|overlap".to_owned(),
        lease: LEASE.as_nanos() as u64,
        lanes: Schedule::names().map(lane).collect(),
    }
}

/// What no schedule may show: tokens that do not grow, an update lost behind the fence, and, if the
/// server kept its leases, two holders inside their deadlines.
fn broken_guarantee(report: &Report, server_kept_leases: bool) -> Option<String> {
    if !report.tokens.sound() {
        return Some(format!("tokens do not grow: {:?}", report.tokens.first));
    }
    let fenced = &report.resource.read_write;
    if fenced.lost > 0 {
        return Some(format!("{} updates lost behind the read+write fence", fenced.lost));
    }
    if server_kept_leases && report.overlap.certain.count > 0 {
        let first = &report.overlap.certain.first[0];
        return Some(format!("attempts {:?} held at the same time", first.holds));
    }
    if server_kept_leases && report.linear.broken > 0 {
        return Some(format!("no order explains the history: {:?}", report.linear.first));
    }
    None
}

/// The sums over the schedules of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Campaign {
    /// Number of schedules.
    pub schedules: u64,
    /// Number of grants in them.
    pub grants: u64,
    /// Number of faults in them.
    pub faults: u64,
    /// Updates that the register without a fence lost: the proof that the faults do harm.
    pub lost: u64,
    /// How long it took.
    pub took: Duration,
    /// The lowest seed that failed, and why.
    pub failure: Option<(u64, String)>,
}

/// Runs the schedules of this seed and the following ones, on all cores, until the number of
/// schedules is reached, the time is over or one fails.
pub fn campaign(first: u64, schedules: u64, time: Option<Duration>) -> Campaign {
    let begin = Instant::now();
    let next = AtomicU64::new(first);
    let failed = AtomicBool::new(false);
    let work = || {
        let mut sums = Campaign::default();
        while !failed.load(Ordering::Relaxed) && time.is_none_or(|time| begin.elapsed() < time) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed - first >= schedules {
                break;
            }
            let result = run(seed);
            sums.schedules += 1;
            sums.grants += result.report.granted;
            sums.faults += result.report.faults;
            sums.lost += result.report.resource.plain.lost;
            if let Some(why) = result.failure {
                sums.failure = Some((seed, why));
                failed.store(true, Ordering::Relaxed);
            }
        }
        sums
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut all = Campaign::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            match worker.join() {
                Ok(sums) => all.add(sums),
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
    fn no_schedule_breaks_a_guarantee() {
        let seen = campaign(0, 300, None);
        println!("{seen:?}");
        assert_eq!(seen.failure, None, "see it with `tenure lab simulate --seed N`");
        assert!(seen.grants > 10 * seen.schedules, "the schedules hardly grant anything");
        assert!(seen.lost > 0, "the faults do no harm, so that they prove nothing");
    }

    #[test]
    fn a_seed_gives_the_same_history_again() {
        for seed in 0..60 {
            let (one, two) = (run(seed), run(seed));
            assert!(one.history == two.history, "seed {seed} gave two histories");
        }
    }

    #[test]
    fn a_server_that_grants_the_lock_twice_is_found() {
        let found = (0..20).filter(|&seed| run_on(seed, true).failure.is_some()).count();
        assert!(found >= 5, "only {found} of 20 schedules saw it");
    }
}
