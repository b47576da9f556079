//! What the store keeps of a lease, against what its holder believes.

use std::time::{Duration, Instant};

use tenure::ErrorKind;
use tenure::backend::{Backend, Claim, Scope};
use tenure::backends::Sqlite;

use crate::{Bench, LEASE, busy, claim, renew, take, waiting};

/// When the lease ends by the store's own word: not before this.
async fn end(store: &Sqlite, claim: &Claim) -> Instant {
    let holdings = store.list(Scope::Key(&claim.key)).await.unwrap();
    let left = holdings[0].holder.ttl_left.unwrap();
    Instant::now() + left
}

#[tokio::test]
async fn a_lease_ends_no_earlier_than_its_holder_believes() {
    let bench = Bench::new();
    let store = bench.open().await;
    for n in 0..100 {
        let mine = claim(&n.to_string());
        let sent = Instant::now();
        take(&store, &mine).await;
        let kept = end(&store, &mine).await;
        assert!(kept >= sent + mine.ttl, "grant {n} ends {:?} too early", sent + mine.ttl - kept);
        let sent = Instant::now();
        renew(&store, &mine).await.unwrap();
        let kept = end(&store, &mine).await;
        assert!(kept >= sent + mine.ttl, "renewal {n} ends {:?} early", sent + mine.ttl - kept);
        let sent = Instant::now();
        take(&store, &mine).await;
        let kept = end(&store, &mine).await;
        assert!(kept >= sent + mine.ttl, "repeat {n} ends {:?} too early", sent + mine.ttl - kept);
    }
}

#[tokio::test]
async fn nobody_is_granted_a_key_before_its_holder_has_stopped_to_believe() {
    let bench = Bench::new();
    let (one, two) = (bench.open().await, bench.open().await);
    for round in 0..20 {
        let (mut mine, next) = (claim("a"), claim("a"));
        mine.ttl = Duration::from_micros(50_300 + 7 * round);
        let sent = Instant::now();
        take(&one, &mine).await;
        while two.try_acquire(&next).await.unwrap().granted().is_err() {}
        let early = (sent + mine.ttl).checked_duration_since(Instant::now());
        assert_eq!(early, None, "round {round}: two holders");
        assert!(two.release(&next).await.unwrap());
    }
}

#[tokio::test]
async fn no_request_shortens_a_lease() {
    let bench = Bench::new();
    let store = bench.open().await;
    let mut mine = claim("a");
    let sent = Instant::now();
    take(&store, &mine).await;
    mine.ttl = Duration::from_millis(50);
    take(&store, &mine).await;
    assert!(end(&store, &mine).await >= sent + LEASE, "a repeated request has shortened it");
    renew(&store, &mine).await.unwrap();
    assert!(end(&store, &mine).await >= sent + LEASE, "a renewal has shortened it");
}

#[tokio::test]
async fn no_request_shortens_a_queue_entry() {
    let bench = Bench::new();
    let (store, other) = (bench.open().await, bench.open().await);
    let (holder, mut first, second) = (claim("a"), waiting("a"), waiting("a"));
    take(&store, &holder).await;
    busy(&store, &first).await;
    busy(&store, &second).await;
    first.ttl = Duration::from_millis(50);
    // By a store that has not told it before that it waits, and so writes it down.
    busy(&other, &first).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(busy(&store, &second).await.ahead, Some(1), "the first has lost its place");
}

#[tokio::test]
async fn a_renewal_is_of_the_grant_that_it_names() {
    let bench = Bench::new();
    let store = bench.open().await;
    let mut mine = claim("a");
    let evicted = take(&store, &mine).await.token;
    mine.token = Some(evicted);
    renew(&store, &mine).await.unwrap();
    assert!(store.evict(&mine.key, evicted).await.unwrap());
    // As by a late request of the evicted claim.
    let token = take(&store, &mine).await.token;
    assert!(token > evicted);
    let error = renew(&store, &mine).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    mine.token = Some(token);
    renew(&store, &mine).await.unwrap();
}
