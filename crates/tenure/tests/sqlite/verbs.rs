//! What each verb does, between two opens of one file.

use std::time::{Duration, Instant};

use tenure::backend::{Backend, Fencing, Order, Reach, Scope, Wakeup};
use tenure::{Attempt, ErrorKind, FencingToken, Key};

use crate::{Bench, LEASE, RUNG, SOON, busy, claim, held, register, renew, take, waiting, within};

/// By which the store rounds up.
const MS: Duration = Duration::from_millis(1);

#[tokio::test]
async fn the_store_says_what_it_promises() {
    let info = Bench::new().open().await.info();
    assert_eq!((info.name, info.reach), ("sqlite", Reach::Machine));
    assert_eq!((info.fencing, info.order), (Fencing::Strict, Order::Fifo));
    assert_eq!(info.wakeup, Wakeup::Push);
}

#[tokio::test]
async fn a_key_has_one_holder_and_the_other_learns_who() {
    let bench = Bench::new();
    let (one, two) = (bench.open().await, bench.open().await);
    let mine = claim("a");
    let grant = take(&one, &mine).await;
    assert_eq!(grant.ttl, LEASE);
    let answer = busy(&two, &claim("a")).await;
    let holder = answer.holder.unwrap();
    assert_eq!((holder.name.as_str(), holder.token), ("tester", Some(grant.token)));
    assert!(holder.ttl_left.unwrap() > LEASE / 2 && answer.retry_after.unwrap() <= LEASE + MS);
    assert_eq!(answer.ahead, None);
    assert!(one.release(&mine).await.unwrap());
    assert!(take(&two, &claim("a")).await.token > grant.token);
}

#[tokio::test]
async fn a_released_key_goes_to_who_has_waited_longest_and_rings_only_him() {
    let bench = Bench::new();
    let (one, two) = (bench.open().await, bench.open().await);
    let (holder, first, second) = (claim("a"), waiting("a"), waiting("a"));
    take(&one, &holder).await;
    assert_eq!(busy(&two, &first).await.ahead, Some(0));
    assert_eq!(busy(&one, &second).await.ahead, Some(1));
    let (mut hint, mut other) = (two.until_free(&first), one.until_free(&second));
    register(&two, &mut hint).await;
    register(&one, &mut other).await;
    assert!(one.release(&holder).await.unwrap());
    assert_eq!(within(RUNG, hint).await, None);
    // A newcomer does not overtake, and the second was not disturbed.
    busy(&one, &claim("a")).await;
    register(&one, &mut other).await;
    let grant = take(&two, &first).await;
    assert!(two.release(&first).await.unwrap());
    within(RUNG, other).await;
    assert!(take(&one, &second).await.token > grant.token);
}

#[tokio::test]
async fn a_hint_that_comes_after_the_event_fires_at_once() {
    let bench = Bench::new();
    let (one, two) = (bench.open().await, bench.open().await);
    let (holder, waiter) = (claim("a"), waiting("a"));
    take(&one, &holder).await;
    busy(&two, &waiter).await;
    one.release(&holder).await.unwrap();
    within(RUNG, two.until_free(&waiter)).await;
    within(RUNG, two.until_free(&claim("nobody's"))).await;
    within(RUNG, one.until_lost(&holder)).await;
}

#[tokio::test]
async fn an_offer_that_nobody_confirms_goes_on_to_the_next() {
    let bench = Bench::new();
    let (one, two) = (bench.open().await, bench.open().await);
    let (holder, absent, present) = (claim("a"), waiting("a"), waiting("a"));
    take(&one, &holder).await;
    busy(&one, &absent).await;
    busy(&two, &present).await;
    one.release(&holder).await.unwrap();
    let began = Instant::now();
    while let Attempt::Busy(busy) = two.try_acquire(&present).await.unwrap() {
        assert!(busy.retry_after.unwrap() <= Duration::from_secs(1) + MS, "not an offer: {busy:?}");
        within(SOON, two.until_free(&present)).await;
    }
    assert!(began.elapsed() > Duration::from_millis(900), "the first had no time to confirm");
    assert_eq!(renew(&one, &absent).await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn asking_twice_is_asking_once() {
    let bench = Bench::new();
    let (one, two) = (bench.open().await, bench.open().await);
    let (mine, first, second) = (claim("a"), waiting("a"), waiting("a"));
    let grant = take(&one, &mine).await;
    assert_eq!(take(&one, &mine).await, grant);
    for _ in 0..3 {
        assert_eq!(busy(&two, &first).await.ahead, Some(0));
        assert_eq!(busy(&two, &second).await.ahead, Some(1));
    }
    let holdings = one.list(Scope::Key(&mine.key)).await.unwrap();
    assert_eq!(holdings.len(), 1);
    assert_eq!(holdings[0].waiters.len(), 2);
}

#[tokio::test]
async fn an_expired_place_has_lost_its_rank() {
    let bench = Bench::new();
    let store = bench.open().await;
    let (holder, mut slow, quick) = (claim("a"), waiting("a"), waiting("a"));
    slow.ttl = Duration::from_millis(50);
    take(&store, &holder).await;
    busy(&store, &slow).await;
    assert_eq!(busy(&store, &quick).await.ahead, Some(1));
    within(SOON, async {
        while busy(&store, &quick).await.ahead != Some(0) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Only asking brings a new place, so the hint says so.
    within(RUNG, store.until_free(&slow)).await;
    assert_eq!(busy(&store, &slow).await.ahead, Some(1));
}

#[tokio::test]
async fn a_renewal_extends_and_never_creates() {
    let bench = Bench::new();
    let store = bench.open().await;
    let (mut mine, stranger) = (claim("a"), claim("a"));
    take(&store, &mine).await;
    mine.ttl = LEASE * 2;
    let answers = store.renew(&[mine.clone(), stranger.clone(), claim("b")]).await;
    assert_eq!(*answers[0].as_ref().unwrap(), LEASE * 2);
    for lost in &answers[1..] {
        assert_eq!(lost.as_ref().unwrap_err().kind(), ErrorKind::Lost);
    }
    let left = busy(&store, &stranger).await.retry_after.unwrap();
    assert!(left > LEASE, "{left:?}");
    assert!(store.release(&mine).await.unwrap());
    assert_eq!(renew(&store, &mine).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(held(&store).await, [""; 0]);
}

#[tokio::test]
async fn a_place_in_the_queue_cannot_be_renewed_into_the_lock() {
    let bench = Bench::new();
    let store = bench.open().await;
    let waiter = waiting("a");
    take(&store, &claim("a")).await;
    busy(&store, &waiter).await;
    assert_eq!(renew(&store, &waiter).await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn a_lease_that_ended_is_lost_and_the_key_goes_on() {
    let bench = Bench::new();
    let (one, two) = (bench.open().await, bench.open().await);
    let (mut mine, waiter) = (claim("a"), waiting("a"));
    mine.ttl = Duration::from_millis(500);
    let began = Instant::now();
    let grant = take(&one, &mine).await;
    busy(&two, &waiter).await;
    within(SOON, two.until_free(&waiter)).await;
    assert!(began.elapsed() >= mine.ttl, "the lease had not ended");
    assert!(take(&two, &waiter).await.token > grant.token);
    let error = renew(&one, &mine).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("somebody else"), "{error}");
    assert!(!one.release(&mine).await.unwrap());
    renew(&two, &waiter).await.expect("a late release touched another owner");
}

#[tokio::test]
async fn a_stranger_releases_nothing_and_a_waiter_withdraws() {
    let bench = Bench::new();
    let store = bench.open().await;
    let (mine, waiter) = (claim("a"), waiting("a"));
    take(&store, &mine).await;
    assert!(!store.release(&claim("a")).await.unwrap());
    assert!(!store.release(&claim("b")).await.unwrap());
    busy(&store, &waiter).await;
    assert!(!store.release(&waiter).await.unwrap());
    assert_eq!(busy(&store, &waiting("a")).await.ahead, Some(0));
    renew(&store, &mine).await.unwrap();
}

#[tokio::test]
async fn an_eviction_is_of_one_grant_and_its_holder_hears_it() {
    let bench = Bench::new();
    let (one, two) = (bench.open().await, bench.open().await);
    let (mine, next) = (claim("a"), waiting("a"));
    let token = take(&one, &mine).await.token;
    busy(&two, &next).await;
    let mut hint = one.until_lost(&mine);
    register(&one, &mut hint).await;
    let other = FencingToken::new(token.get() + 1).unwrap();
    assert!(!two.evict(&mine.key, other).await.unwrap());
    register(&one, &mut hint).await;
    assert!(two.evict(&mine.key, token).await.unwrap());
    within(RUNG, hint).await;
    let error = renew(&one, &mine).await.unwrap_err();
    assert!(error.to_string().contains("evicted"), "{error}");
    assert!(!two.evict(&mine.key, token).await.unwrap());
    assert!(take(&two, &next).await.token > token);
}

#[tokio::test]
async fn tokens_grow_across_keys_reopening_and_deletion_of_the_store() {
    let bench = Bench::new();
    let mut last = FencingToken::new(1).unwrap();
    let mut grows = |token| {
        assert!(token > last, "{token:?} after {last:?}");
        last = token;
    };
    let store = bench.open().await;
    grows(take(&store, &claim("a")).await.token);
    grows(take(&store, &claim("b")).await.token);
    drop(store);
    let store = bench.open().await;
    grows(take(&store, &claim("a")).await.token);
    drop(store);
    bench.delete(&["", "-wal", "-shm"]);
    grows(take(&bench.open().await, &claim("a")).await.token);
}

#[tokio::test]
async fn a_dropped_store_gives_everything_back_and_leaves_no_session() {
    let bench = Bench::new();
    let (one, two) = (bench.open().await, bench.open().await);
    let waiter = waiting("a");
    take(&one, &claim("a")).await;
    take(&one, &claim("b")).await;
    busy(&two, &waiter).await;
    let mut hint = two.until_free(&waiter);
    register(&two, &mut hint).await;
    drop(one.clone());
    assert_eq!(held(&two).await, ["a", "b"], "a clone was not the last");
    drop(one);
    within(RUNG, hint).await;
    take(&two, &waiter).await;
    assert_eq!(held(&two).await, ["a"]);
    drop(two);
    assert_eq!(bench.sessions(), [""; 0]);
}

#[tokio::test]
async fn a_release_does_not_overtake_the_dropped_request_it_undoes() {
    let bench = Bench::new();
    let (one, two) = (bench.open().await, bench.open().await);
    for _ in 0..50 {
        let mut mine = claim("a");
        {
            let mut request = one.try_acquire(&mine);
            let _sent = crate::waits(&mut request);
        }
        mine.doubtful = true;
        one.release(&mine).await.unwrap();
        let other = claim("a");
        take(&two, &other).await;
        two.release(&other).await.unwrap();
    }
}

#[tokio::test]
async fn looking_makes_no_session() {
    let bench = Bench::new();
    let store = bench.open().await;
    assert_eq!(held(&store).await, [""; 0]);
    let (key, token) = (Key::new("a").unwrap(), FencingToken::new(1).unwrap());
    assert!(!store.evict(&key, token).await.unwrap());
    assert_eq!(bench.sessions(), [""; 0]);
    take(&store, &claim("a")).await;
    assert_eq!(bench.sessions().len(), 1, "a beacon, and no bell before somebody waits");
}

#[tokio::test]
async fn a_listing_takes_a_prefix_by_its_letters() {
    let bench = Bench::new();
    let store = bench.open().await;
    for key in ["a%", "a%/x", "ab", "a_", "'; DROP TABLE claim; --", "é"] {
        take(&store, &claim(key)).await;
    }
    let keys = async |prefix: &'static str| {
        let holdings = store.list(Scope::Prefix(prefix)).await.unwrap();
        holdings.iter().map(|holding| holding.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(keys("a%").await, ["a%", "a%/x"]);
    assert_eq!(keys("é").await, ["é"]);
    assert_eq!(keys("").await.len(), 6);
    assert_eq!(keys("x").await, [""; 0]);
}

#[tokio::test]
async fn somebody_without_a_place_sees_the_key_become_free() {
    let bench = Bench::new();
    let (one, two) = (bench.open().await, bench.open().await);
    let (mine, watcher) = (claim("a"), claim("a"));
    take(&one, &mine).await;
    let mut hint = two.until_free(&watcher);
    register(&two, &mut hint).await;
    one.release(&mine).await.unwrap();
    within(SOON, hint).await;
    take(&two, &watcher).await;
}
