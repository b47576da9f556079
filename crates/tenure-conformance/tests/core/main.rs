//! The core over `memory` behind faults, on a paused clock: hours pass in milliseconds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::{Backend, Claim, Grant, Info, Scope};
use tenure::backends::Memory;
use tenure::{
    Attempt, Client, Config, ErrorKind, Event, FencingToken, Finding, Holding, Key, LostReason,
    Result,
};
use tenure_conformance::fault::{Cut, Faults, Faulty};
use tokio::time::{Instant, advance, sleep, timeout};

mod endings;
mod fate;
mod probe;

const TTL: Duration = Duration::from_secs(30);

/// A client over faults, and the faults.
fn faulty(faults: Faults) -> (Client, Arc<Faulty<Memory>>) {
    let faulty = Arc::new(Faulty::new(Memory::new(), faults));
    (Client::new(faulty.clone()), faulty)
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_is_cut_off_knows_the_end_of_its_lease() {
    for cut in [Cut::Hung, Cut::Refused, Cut::Renewals] {
        let (client, faults) = faulty(Faults::default());
        let guard = client.lock("k").acquire().await.unwrap();
        let granted = Instant::now();
        faults.cut(cut);
        let lost = timeout(TTL * 2, guard.lost()).await.unwrap();
        assert_eq!(lost.reason(), LostReason::Expired, "{cut:?}");
        let held = granted.elapsed();
        assert!(held <= TTL + Duration::from_millis(20), "{cut:?}: told after {held:?}");
        assert!(held >= TTL - Duration::from_millis(20), "{cut:?}: told after {held:?}");
        assert!(guard.check().is_err());
    }
}

/// Only the requests get through. The server goes on renewing, but the holder cannot know that.
#[tokio::test(start_paused = true)]
async fn a_renewal_without_an_answer_extends_nothing() {
    let (client, faults) = faulty(Faults::default());
    let guard = client.lock("k").acquire().await.unwrap();
    faults.cut(Cut::Answers);
    let lost = timeout(TTL + Duration::from_secs(1), guard.lost()).await.unwrap();
    assert_eq!(lost.reason(), LostReason::Expired);
}

#[tokio::test(start_paused = true)]
async fn doubt_is_not_loss() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let (seen, memory) = (events.clone(), Faulty::new(Memory::new(), Faults::default()));
    let shared = Arc::new(memory);
    let client = Config::default()
        .observe(move |event| seen.lock().unwrap().push(event.clone()))
        .over(shared.clone());
    let guard = client.lock("k").acquire().await.unwrap();
    for _ in 0..10 {
        // Every outage is shorter than what is left of the lease.
        shared.cut(Cut::Hung);
        sleep(TTL / 2).await;
        shared.cut(Cut::Open);
        sleep(TTL / 2).await;
        guard.check().unwrap();
    }
    guard.release().await.unwrap();
    let events = events.lock().unwrap();
    let count = |kind: fn(&Event) -> bool| events.iter().filter(|event| kind(event)).count();
    assert!(count(|event| matches!(event, Event::Doubt { .. })) >= 10, "{events:?}");
    assert!(count(|event| matches!(event, Event::Renewed { .. })) >= 10, "{events:?}");
    assert_eq!(count(|event| matches!(event, Event::Lost(_))), 0, "{events:?}");
}

/// Two seconds there and two back: the server's lease began in the middle, ours before.
#[tokio::test(start_paused = true)]
async fn a_lease_counts_from_before_the_request() {
    let (client, _) = faulty(Faults { delay: Duration::from_secs(2), ..Faults::default() });
    let guard = client.lock("k").acquire().await.unwrap();
    let left = guard.check().unwrap();
    assert!(left <= TTL - Duration::from_secs(4), "{left:?} left");
    sleep(TTL / 2).await;
    let left = guard.check().unwrap();
    assert!(left <= TTL - Duration::from_secs(4), "{left:?} left after a renewal");
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_renewed_every_third_of_its_ttl() {
    let (client, faults) = faulty(Faults { hints: false, ..Faults::default() });
    let guard = client.lock("k").acquire().await.unwrap();
    let before = faults.calls();
    sleep(TTL * 10 + Duration::from_secs(1)).await;
    let renewals = faults.calls() - before;
    assert!((29..=33).contains(&renewals), "{renewals} renewals in ten leases");
    assert!(guard.check().unwrap() > TTL / 2);
}

#[tokio::test(start_paused = true)]
async fn the_interval_can_be_set() {
    let (client, faults) = faulty(Faults { hints: false, ..Faults::default() });
    let lock = client.lock("k").renew_every(Duration::from_secs(5));
    let _guard = lock.acquire().await.unwrap();
    let before = faults.calls();
    sleep(Duration::from_secs(61)).await;
    let renewals = faults.calls() - before;
    assert!((11..=14).contains(&renewals), "{renewals} renewals in a minute");
}

#[tokio::test(start_paused = true)]
async fn acquire_bears_a_dead_server_for_its_outage() {
    let (client, faults) = faulty(Faults::default());
    for cut in [Cut::Refused, Cut::Hung] {
        faults.cut(cut);
        let start = Instant::now();
        let error = client.lock("k").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let borne = start.elapsed();
        assert!(borne >= TTL && borne < TTL + Duration::from_secs(7), "{cut:?}: {borne:?}");
    }
    assert!(faults.calls() < 100, "asked {} times", faults.calls());
    faults.cut(Cut::Open);
    client.flush().await.unwrap();
    client.lock("k").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn acquire_goes_on_when_the_server_is_back() {
    let (client, faults) = faulty(Faults::default());
    faults.cut(Cut::Refused);
    let waiting = tokio::spawn(client.lock("k").acquire());
    sleep(TTL / 2).await;
    faults.cut(Cut::Open);
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn bounded_waits_end_in_time_on_a_hung_server() {
    let (client, faults) = faulty(Faults::default());
    faults.cut(Cut::Hung);
    let start = Instant::now();
    let waiting = client.lock("k").acquire_within(Duration::from_millis(200));
    assert_eq!(waiting.await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(start.elapsed() <= Duration::from_millis(500), "{:?}", start.elapsed());
    let start = Instant::now();
    let error = client.lock("k").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(start.elapsed() <= Duration::from_secs(6), "{:?}", start.elapsed());
}

/// What was asked without an answer may have been granted: it is taken back when the way is open.
#[tokio::test(start_paused = true)]
async fn an_ask_whose_answer_was_lost_leaves_no_ghost() {
    let (client, faults) = faulty(Faults::default());
    faults.cut(Cut::Answers);
    let waiting = client.lock("k").acquire_within(Duration::from_millis(100));
    assert_eq!(waiting.await.unwrap_err().kind(), ErrorKind::Unavailable);
    faults.cut(Cut::Open);
    assert!(client.lock("k").holding().await.unwrap().is_some(), "the server granted it");
    client.flush().await.unwrap();
    assert!(client.lock("k").holding().await.unwrap().is_none(), "a ghost holds the lock");
}

#[tokio::test(start_paused = true)]
async fn an_ask_whose_answer_was_lost_finds_its_own_grant() {
    let (client, faults) = faulty(Faults::default());
    faults.cut(Cut::Answers);
    let waiting = tokio::spawn(client.lock("k").acquire());
    sleep(Duration::from_secs(2)).await;
    faults.cut(Cut::Open);
    let guard = waiting.await.unwrap().unwrap();
    assert_eq!(guard.token().get(), 1, "asking twice was granted twice");
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_does_not_overtake_the_request_it_undoes() {
    let faults = Faults { delay: Duration::from_secs(1), ..Faults::default() };
    let (client, _) = faulty(faults);
    for dropped_after in [0, 500, 999, 1001, 1500, 1999, 2001] {
        let asking = tokio::spawn(client.lock("k").acquire());
        sleep(Duration::from_millis(dropped_after)).await;
        asking.abort();
        drop(asking.await);
        client.flush().await.unwrap();
        let left = client.lock("k").holding().await.unwrap();
        assert!(left.is_none(), "dropped after {dropped_after} ms, left {left:?}");
    }
}

/// The pushed grant's lease began with the waiter's last ask, not with the push.
#[tokio::test(start_paused = true)]
async fn a_pushed_grant_counts_from_the_last_answered_ask() {
    let memory = Memory::new();
    let (one, two) = (Client::new(memory.clone()), Client::new(memory));
    let guard = one.lock("k").acquire().await.unwrap();
    let waiter = tokio::spawn(two.lock("k").acquire());
    sleep(TTL / 3 - Duration::from_secs(2)).await;
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    let left = guard.check().unwrap();
    assert!(left <= TTL - Duration::from_secs(7), "{left:?} left of a lease that began before");
    // The keeper renews such a lease early, and then it is whole.
    sleep(Duration::from_secs(4)).await;
    assert!(guard.check().unwrap() > TTL - Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn one_release_wakes_one_waiter() {
    let (client, faults) = faulty(Faults::default());
    let guard = client.lock("k").acquire().await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..20 {
        waiters.spawn(client.lock("k").acquire());
    }
    while client.lock("k").holding().await.unwrap().is_none_or(|held| held.waiters.len() < 20) {
        sleep(Duration::from_millis(1)).await;
    }
    let before = faults.calls();
    guard.release().await.unwrap();
    let guard = waiters.join_next().await.unwrap().unwrap().unwrap();
    let calls = faults.calls() - before;
    // The release itself; the push carries the grant.
    assert!(calls <= 2, "{calls} calls for one hand-over");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn an_eager_hint_is_not_a_hot_loop() {
    let eager = Arc::new(Eager(Memory::new(), AtomicU64::new(0)));
    let client = Client::new(eager.clone());
    let _guard = client.lock("k").acquire().await.unwrap();
    let waiting = client.lock("k").acquire_within(Duration::from_secs(10));
    assert!(matches!(waiting.await.unwrap(), Attempt::Busy(_)));
    let asks = eager.1.load(Ordering::Relaxed);
    assert!(asks < 300, "asked {asks} times in ten seconds");
}

#[tokio::test(start_paused = true)]
async fn hints_for_very_many_locks_at_once_make_few_renewals() {
    let eager = Arc::new(Eager(Memory::new(), AtomicU64::new(0)));
    let client = Client::new(eager.clone());
    let mut guards = Vec::new();
    for number in 0..1000 {
        guards.push(client.lock(format!("k{number}")).acquire().await.unwrap());
    }
    let before = eager.1.load(Ordering::Relaxed);
    // Hints are asked for after 20 ms, and once more 250 ms later.
    sleep(Duration::from_millis(200)).await;
    let renewals = eager.1.load(Ordering::Relaxed) - before;
    assert!((2..=10).contains(&renewals), "{renewals} calls for 1000 locks");
    drop(guards);
}

/// A backend whose hints fire at once, always, and whose renewals panic now and then.
#[derive(Debug)]
struct Eager(Memory, AtomicU64);

#[async_trait]
impl Backend for Eager {
    fn info(&self) -> Info {
        self.0.info()
    }
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.try_acquire(claim).await
    }
    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        if self.1.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        self.0.renew(claims).await
    }
    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.0.release(claim).await
    }
    async fn until_free(&self, _: &Claim) -> Option<Grant> {
        None
    }
    async fn until_lost(&self, _: &Claim) {}
    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        self.0.list(scope).await
    }
    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        self.0.evict(key, token).await
    }
    async fn examine(&self) -> Result<Vec<Finding>> {
        self.0.examine().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_backend_or_observer_that_panics_does_not_stop_the_keeper() {
    let eager = Arc::new(Eager(Memory::new(), AtomicU64::new(0)));
    let panicking = |_: &Event| std::panic::resume_unwind(Box::new("on purpose"));
    let client = Config::default().observe(panicking).over(eager.clone());
    let guard = client.lock("k").acquire().await.unwrap();
    for _ in 0..20 {
        sleep(TTL / 2).await;
        guard.check().unwrap();
    }
    let renewals = eager.1.load(Ordering::Relaxed);
    assert!(renewals < 3000, "an eager hint made {renewals} renewals in ten leases");
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_local_expiry_is_final() {
    let (client, faults) = faulty(Faults { delay: Duration::from_secs(1), ..Faults::default() });
    let lock = client.lock("k").ttl(Duration::from_secs(20));
    let guard = lock.acquire().await.unwrap();
    faults.cut(Cut::Hung);
    // The runtime is stopped past the lease, as SIGSTOP would: timers fire late, all at once.
    advance(Duration::from_secs(60)).await;
    faults.cut(Cut::Open);
    assert_eq!(guard.check().unwrap_err().reason(), LostReason::Expired);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(guard.check().unwrap_err().reason(), LostReason::Expired);
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
}

/// After a pause past the lease the work must not be polled even once.
#[tokio::test(start_paused = true)]
async fn while_held_does_not_poll_the_work_after_the_lease() {
    let client = Client::new(Memory::new());
    let guard = client.lock("k").without_renewal().acquire().await.unwrap();
    let polls = Arc::new(AtomicU64::new(0));
    let counted = polls.clone();
    let work = std::future::poll_fn(move |context| {
        counted.fetch_add(1, Ordering::Relaxed);
        context.waker().wake_by_ref();
        std::task::Poll::<()>::Pending
    });
    let mut held = Box::pin(guard.while_held(work));
    assert!(futures_util::poll!(held.as_mut()).is_pending());
    advance(TTL).await;
    let polled = polls.load(Ordering::Relaxed);
    assert_eq!(held.await.unwrap_err().reason(), LostReason::Expired);
    assert_eq!(polls.load(Ordering::Relaxed), polled, "polled after the lease");
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_release_says_so_and_goes_on() {
    let (client, faults) = faulty(Faults::default());
    let guard = client.lock("k").acquire().await.unwrap();
    faults.cut(Cut::Refused);
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    faults.cut(Cut::Open);
    client.flush().await.unwrap();
    let _again = client.lock("k").try_acquire().await.unwrap().granted().unwrap();
}

#[tokio::test(start_paused = true)]
async fn run_gives_the_output_even_if_the_release_is_not_confirmed() {
    let (client, faults) = faulty(Faults::default());
    let cut = faults.clone();
    let work = move |_| async move {
        cut.cut(Cut::Refused);
        42
    };
    assert_eq!(client.lock("k").run(work).await.unwrap(), 42);
}

#[tokio::test(start_paused = true)]
async fn shutdown_on_a_dead_server_ends_and_says_so() {
    let (client, faults) = faulty(Faults::default());
    let guard = client.lock("k").acquire().await.unwrap();
    faults.cut(Cut::Hung);
    let ending = client.shutdown(Duration::from_secs(1));
    let error = timeout(TTL, ending).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(guard.check().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_look_at_a_hung_server_ends() {
    let (client, faults) = faulty(Faults::default());
    let guard = client.lock("k").acquire().await.unwrap();
    faults.cut(Cut::Hung);
    assert_eq!(client.list("").await.unwrap_err().kind(), ErrorKind::Unavailable);
    let lock = client.lock("k");
    assert_eq!(lock.holding().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(lock.evict(guard.token()).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_prefix_that_cannot_begin_a_key_is_reported() {
    let client = Config::default().prefix("a\n").over(Memory::new());
    assert_eq!(client.lock("k").acquire().await.unwrap_err().kind(), ErrorKind::Invalid);
    let config: Config = "memory:?prefix=%0a".parse().unwrap();
    assert_eq!(config.connect().await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_was_forgotten_is_bounded_by_max_hold() {
    let client = Client::new(Memory::new());
    let lock = client.lock("k").max_hold(Duration::from_secs(3600));
    std::mem::forget(lock.acquire().await.unwrap());
    sleep(Duration::from_secs(3000)).await;
    assert!(matches!(lock.try_acquire().await.unwrap(), Attempt::Busy(_)));
    sleep(Duration::from_secs(601)).await;
    drop(lock.try_acquire().await.unwrap().granted().unwrap());
}

#[test]
fn a_memory_client_outlives_a_runtime() {
    let client = Client::new(Memory::new());
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let lock = client.lock("k").ttl(Duration::from_millis(300));
            let guard = lock.try_acquire().await.unwrap().granted().unwrap();
            sleep(Duration::from_millis(700)).await;
            guard.check().unwrap();
            guard
        })
    };
    drop(run());
    drop(run());
}

#[test]
fn a_memory_client_needs_no_runtime() {
    let locks = tenure::blocking::connect("memory:?ttl=300ms").unwrap();
    let guard = locks.lock("k").acquire().unwrap();
    let (sender, told) = std::sync::mpsc::channel();
    guard.on_lost(move |lost| sender.send(lost.reason()).unwrap());
    std::thread::sleep(Duration::from_millis(700));
    guard.check().unwrap();
    assert!(locks.lock("k").evict(guard.token()).unwrap());
    assert_eq!(told.recv_timeout(Duration::from_secs(10)).unwrap(), LostReason::Evicted);
}
