//! How claims end: what a release, a flush and a shutdown report, and what is left at the server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure::backend::{Backend, Scope};
use tenure::backends::Memory;
use tenure::layers::Retry;
use tenure::{Attempt, Client, ErrorKind, LostReason};
use tenure_conformance::fault::{Cut, Faults, Faulty};
use tokio::time::{Instant, sleep, timeout};

use crate::probe::Probe;
use crate::{TTL, faulty};

/// Nothing is held at this server.
async fn is_empty(memory: &Memory) -> bool {
    memory.list(Scope::Prefix("")).await.expect("memory always answers").is_empty()
}

/// Returns when every release is confirmed.
async fn confirmed(client: &Client) {
    while client.flush().await.is_err() {
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_the_release_of_a_dropped_guard() {
    let memory = Memory::new();
    let slow = Faults { delay: Duration::from_secs(1), ..Faults::default() };
    let client = Client::new(Faulty::new(memory.clone(), slow));
    drop(client.lock("k").acquire().await.unwrap());
    client.shutdown(Duration::from_secs(5)).await.unwrap();
    assert!(is_empty(&memory).await, "shutdown returned before the lock was free");
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_requests_that_it_ended() {
    let memory = Memory::new();
    let slow = Faults { delay: Duration::from_secs(1), ..Faults::default() };
    let client = Client::new(Faulty::new(memory.clone(), slow));
    let acquiring = tokio::spawn(client.lock("k").acquire());
    sleep(Duration::from_millis(500)).await;
    client.shutdown(Duration::from_secs(5)).await.unwrap();
    assert_eq!(acquiring.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert!(is_empty(&memory).await, "the claim is left at the server");
}

#[tokio::test(start_paused = true)]
async fn shutdown_names_what_the_server_did_not_confirm() {
    let (client, faults) = faulty(Faults::default());
    let guard = client.lock("orders/42").acquire().await.unwrap();
    faults.cut(Cut::Refused);
    drop(guard);
    let error = client.shutdown(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("orders/42"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn flush_ends_on_a_dead_server_and_names_what_is_left() {
    let (client, faults) = faulty(Faults::default());
    let (one, two) = (client.lock("one"), client.lock("two"));
    let guards = (one.acquire().await.unwrap(), two.acquire().await.unwrap());
    faults.cut(Cut::Refused);
    drop(guards);
    let start = Instant::now();
    let error = timeout(TTL * 2, client.flush()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("`one` and 1 more"), "{error}");
    assert!(start.elapsed() >= TTL, "gave up after {:?}", start.elapsed());
    faults.cut(Cut::Open);
    timeout(Duration::from_secs(5), confirmed(&client)).await.expect("they are repeated");
}

/// The lease at the server may have ended; a claim of a session that is kept alive has not.
#[tokio::test(start_paused = true)]
async fn a_release_is_repeated_until_the_server_has_responded() {
    let probe = Arc::new(Probe::new(Faulty::new(Memory::new(), Faults::default())));
    let faulty = Arc::new(Faulty::new(probe.clone(), Faults::default()));
    let client = Client::new(faulty.clone());
    let guard = client.lock("k").acquire().await.unwrap();
    faulty.cut(Cut::Refused);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    sleep(TTL * 10).await;
    assert_eq!(probe.open().len(), 1);
    let calls = faulty.calls();
    assert!(calls < 1000, "{calls} calls to a dead server in ten leases");
    faulty.cut(Cut::Open);
    sleep(Duration::from_secs(2)).await;
    assert!(probe.open().is_empty(), "the release was not repeated");
}

#[tokio::test(start_paused = true)]
async fn very_many_unconfirmed_releases_are_no_load() {
    let (client, faults) = faulty(Faults::default());
    let mut guards = Vec::new();
    for number in 0..2000 {
        guards.push(client.lock(format!("k{number}")).acquire().await.unwrap());
    }
    faults.cut(Cut::Refused);
    drop(guards);
    sleep(TTL * 2).await;
    let before = faults.calls();
    sleep(Duration::from_secs(100)).await;
    let calls = faults.calls() - before;
    assert!(calls < 10_000, "{calls} calls to a dead server in 100 s");
    faults.cut(Cut::Open);
    timeout(TTL * 2, confirmed(&client)).await.expect("they are repeated");
}

#[tokio::test(start_paused = true)]
async fn every_claim_ends_with_a_release() {
    let probe = Arc::new(Probe::new(Memory::new()));
    let (client, other) = (Client::new(probe.clone()), Client::new(probe.clone()));
    let lock = client.lock("k");
    for _ in 0..3 {
        let holder = other.lock("k").acquire().await.unwrap();
        let waiter = tokio::spawn(lock.acquire());
        sleep(Duration::from_secs(1)).await;
        holder.release().await.unwrap();
        let guard = waiter.await.unwrap().unwrap();
        assert!(lock.evict(guard.token()).await.unwrap());
        assert_eq!(guard.lost().await.reason(), LostReason::Evicted);
    }
    sleep(Duration::from_secs(1)).await;
    let open = probe.open().len();
    assert_eq!(open, 0, "{open} claims are left in the backend");
}

#[tokio::test(start_paused = true)]
async fn an_inner_guard_says_that_the_lock_was_lost() {
    let client = Client::new(Memory::new());
    let mut lock = client.lock("k").reentrant();
    let outer = lock.acquire().await.unwrap();
    let inner = lock.acquire().await.unwrap();
    assert!(client.lock("k").evict(outer.token()).await.unwrap());
    outer.lost().await;
    assert_eq!(inner.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(outer.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_guard_whose_lock_was_released_by_shutdown_says_so() {
    let memory = Memory::new();
    let (client, other) = (Client::new(memory.clone()), Client::new(memory));
    let guard = client.lock("k").acquire().await.unwrap();
    client.shutdown(Duration::ZERO).await.unwrap();
    let next = other.lock("k").acquire().await.unwrap();
    assert!(next.token() > guard.token());
    assert_eq!(guard.check().unwrap_err().reason(), LostReason::Shutdown);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

/// The push and the shutdown are noticed at the same moment.
#[tokio::test(start_paused = true)]
async fn a_grant_that_is_pushed_during_shutdown_is_released() {
    let memory = Memory::new();
    let (client, other) = (Client::new(memory.clone()), Client::new(memory.clone()));
    let holder = other.lock("k").acquire().await.unwrap();
    let waiter = tokio::spawn(client.lock("k").acquire());
    sleep(Duration::from_secs(1)).await;
    drop(holder);
    client.shutdown(Duration::ZERO).await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert!(is_empty(&memory).await, "the pushed grant is still held");
}

#[tokio::test(start_paused = true)]
async fn a_busy_attempt_is_one_request_where_it_leaves_nothing() {
    let probe = Arc::new(Probe::new(Memory::new()));
    let client = Client::new(probe.clone());
    let _guard = client.lock("k").acquire().await.unwrap();
    for _ in 0..5 {
        assert!(matches!(client.lock("k").try_acquire().await.unwrap(), Attempt::Busy(_)));
    }
    client.flush().await.unwrap();
    assert_eq!(probe.releases.load(Ordering::Relaxed), 0, "nothing was left to take back");
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_keeps_its_unknown_outcome() {
    let probe = Arc::new(Probe::new(Memory::new()));
    let client = Client::new(Retry::new(probe.clone(), 3, Duration::from_millis(50)));
    probe.lose.store(1, Ordering::Relaxed);
    let guard = client.lock("k").try_acquire().await.unwrap().granted().unwrap();
    assert_eq!(probe.acquires.load(Ordering::Relaxed), 2, "the layer repeats");
    // A busy response after a lost one ends the claim all the same.
    probe.lose.store(1, Ordering::Relaxed);
    assert!(matches!(client.lock("k").try_acquire().await.unwrap(), Attempt::Busy(_)));
    assert_eq!(probe.unconfirmed.load(Ordering::Relaxed), 1, "a late request would be granted");
    guard.release().await.unwrap();
    assert_eq!(probe.unconfirmed.load(Ordering::Relaxed), 2, "a late request would be granted");
    // A claim whose first request got a response is not unconfirmed.
    client.lock("k").try_acquire().await.unwrap().granted().unwrap().release().await.unwrap();
    assert_eq!(probe.unconfirmed.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_is_not_repeated() {
    let probe = Arc::new(Probe::new(Memory::new()));
    let client = Client::new(Retry::new(probe.clone(), 3, Duration::from_millis(50)));
    let guard = client.lock("k").acquire().await.unwrap();
    probe.lose.store(1, Ordering::Relaxed);
    let evicted = client.lock("k").evict(guard.token()).await;
    assert_eq!(evicted.unwrap_err().kind(), ErrorKind::Unavailable, "it was carried out");
    assert_eq!(probe.evictions.load(Ordering::Relaxed), 1);
}
