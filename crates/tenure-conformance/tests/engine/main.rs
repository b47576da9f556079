//! The engine over `memory` behind injected faults, on a paused clock: hours pass in milliseconds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::backends::Memory;
use tenure::{Attempt, Client, Config, ErrorKind, Event, LostReason};
use tenure_conformance::fault::{Cut, Faults, Faulty};
use tokio::time::{Instant, advance, sleep, timeout};

mod hint_handling;
mod probe;
mod releases;
mod renewals;
mod stalls;

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

/// Only the requests arrive. The server renews, but the holder cannot know that.
#[tokio::test(start_paused = true)]
async fn a_renewal_without_a_response_extends_nothing() {
    let (client, faults) = faulty(Faults::default());
    let guard = client.lock("k").acquire().await.unwrap();
    faults.cut(Cut::Responses);
    let lost = timeout(TTL + Duration::from_secs(1), guard.lost()).await.unwrap();
    assert_eq!(lost.reason(), LostReason::Expired);
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_not_a_loss() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = events.clone();
    let memory = Faulty::new(Memory::new(), Faults::default());
    let shared = Arc::new(memory);
    let client = Config::default()
        .observe(move |event| seen.lock().unwrap().push(event.clone()))
        .with_backend(shared.clone());
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
    assert!(count(|event| matches!(event, Event::RenewalFailed { .. })) >= 10, "{events:?}");
    assert!(count(|event| matches!(event, Event::Renewed { .. })) >= 10, "{events:?}");
    assert_eq!(count(|event| matches!(event, Event::Lost(_))), 0, "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_ends_busy_is_told_once() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = events.clone();
    let memory = Arc::new(Memory::new());
    let holder = Client::new(memory.clone());
    let client = Config::default()
        .observe(move |event| seen.lock().unwrap().push(event.clone()))
        .with_backend(memory);
    let guard = holder.lock("k").note("stocktaking").acquire().await.unwrap();
    let lock = client.lock("k");
    assert!(matches!(lock.try_acquire().await.unwrap(), Attempt::Busy(_)));
    let limit = Duration::from_secs(5);
    assert!(matches!(lock.acquire_within(limit).await.unwrap(), Attempt::Busy(_)));
    assert!(timeout(limit, lock.acquire()).await.is_err());
    // Else the dropped claim may be granted before it is cancelled.
    client.flush().await.unwrap();
    guard.release().await.unwrap();
    lock.acquire_within(limit).await.unwrap().granted().unwrap().release().await.unwrap();
    client.flush().await.unwrap();
    let events = events.lock().unwrap();
    let busy: Vec<_> = events
        .iter()
        .filter_map(|event| if let Event::Busy(busy) = event { Some(busy) } else { None })
        .collect();
    assert_eq!(busy.len(), 2, "{events:?}");
    assert_eq!((busy[0].waited, busy[1].waited), (Duration::ZERO, limit));
    assert!(busy.iter().all(|busy| busy.holder.as_ref().unwrap().note == "stocktaking"));
    let cancelled = events.iter().filter(|event| matches!(event, Event::Cancelled { .. })).count();
    assert_eq!(cancelled, 3, "{events:?}");
}

/// Two seconds to the server and two back: its lease began in between, the client's before.
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
async fn the_renewal_interval_can_be_set() {
    let (client, faults) = faulty(Faults { hints: false, ..Faults::default() });
    let lock = client.lock("k").renew_every(Duration::from_secs(5));
    let _guard = lock.acquire().await.unwrap();
    let before = faults.calls();
    sleep(Duration::from_secs(61)).await;
    let renewals = faults.calls() - before;
    assert!((11..=14).contains(&renewals), "{renewals} renewals in a minute");
}

#[tokio::test(start_paused = true)]
async fn acquire_retries_a_dead_server_for_its_outage() {
    let (client, faults) = faulty(Faults::default());
    for cut in [Cut::Refused, Cut::Hung] {
        faults.cut(cut);
        let start = Instant::now();
        let error = client.lock("k").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let waited = start.elapsed();
        assert!(waited >= TTL && waited < TTL + Duration::from_secs(7), "{cut:?}: {waited:?}");
    }
    assert!(faults.calls() < 100, "{} requests", faults.calls());
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
async fn bounded_acquires_end_in_time_on_a_hung_server() {
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

/// A request without a response may have been granted: it is released when the network is back.
#[tokio::test(start_paused = true)]
async fn an_acquire_whose_response_was_lost_leaves_no_holder() {
    let (client, faults) = faulty(Faults::default());
    faults.cut(Cut::Responses);
    let waiting = client.lock("k").acquire_within(Duration::from_millis(100));
    assert_eq!(waiting.await.unwrap_err().kind(), ErrorKind::Unavailable);
    faults.cut(Cut::Open);
    assert!(client.lock("k").status().await.unwrap().is_some(), "the server granted it");
    client.flush().await.unwrap();
    assert!(client.lock("k").status().await.unwrap().is_none(), "a ghost holds the lock");
}

#[tokio::test(start_paused = true)]
async fn an_acquire_whose_response_was_lost_finds_its_own_grant() {
    let (client, faults) = faulty(Faults::default());
    faults.cut(Cut::Responses);
    let waiting = tokio::spawn(client.lock("k").acquire());
    sleep(Duration::from_secs(2)).await;
    faults.cut(Cut::Open);
    let guard = waiting.await.unwrap().unwrap();
    assert_eq!(guard.token().get(), 1, "two requests were granted twice");
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_does_not_overtake_the_request_that_it_cancels() {
    let faults = Faults { delay: Duration::from_secs(1), ..Faults::default() };
    let (client, _) = faulty(faults);
    for dropped_after in [0, 500, 999, 1001, 1500, 1999, 2001] {
        let acquiring = tokio::spawn(client.lock("k").acquire());
        sleep(Duration::from_millis(dropped_after)).await;
        acquiring.abort();
        drop(acquiring.await);
        client.flush().await.unwrap();
        let left = client.lock("k").status().await.unwrap();
        assert!(left.is_none(), "dropped after {dropped_after} ms, left {left:?}");
    }
}

/// The lease of a pushed grant began with the waiter's last request, not with the push.
#[tokio::test(start_paused = true)]
async fn a_pushed_grant_counts_from_the_last_confirmed_request() {
    let memory = Memory::new();
    let (one, two) = (Client::new(memory.clone()), Client::new(memory));
    let guard = one.lock("k").acquire().await.unwrap();
    let waiter = tokio::spawn(two.lock("k").acquire());
    sleep(TTL / 3 - Duration::from_secs(2)).await;
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    let left = guard.check().unwrap();
    assert!(left <= TTL - Duration::from_secs(7), "{left:?} left of a lease that began before");
    // The renewer renews such a lease early, and then it has its whole ttl.
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
    while client.lock("k").status().await.unwrap().is_none_or(|held| held.waiters.len() < 20) {
        sleep(Duration::from_millis(1)).await;
    }
    let before = faults.calls();
    guard.release().await.unwrap();
    let guard = waiters.join_next().await.unwrap().unwrap().unwrap();
    let calls = faults.calls() - before;
    // The release itself; the push carries the grant.
    assert!(calls <= 2, "{calls} calls for one handoff");
    drop(guard);
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

/// After a pause past the lease the work is not polled even once.
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
async fn run_returns_the_output_even_if_the_release_is_not_confirmed() {
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
async fn a_status_request_to_a_hung_server_ends() {
    let (client, faults) = faulty(Faults::default());
    let guard = client.lock("k").acquire().await.unwrap();
    faults.cut(Cut::Hung);
    assert_eq!(client.list("").await.unwrap_err().kind(), ErrorKind::Unavailable);
    let lock = client.lock("k");
    assert_eq!(lock.status().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(lock.evict(guard.token()).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_prefix_that_cannot_begin_a_key_is_reported() {
    let client = Config::default().prefix("a\n").with_backend(Memory::new());
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
