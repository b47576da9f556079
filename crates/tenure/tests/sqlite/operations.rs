//! What each method of the backend does, between two openings of one file.

use std::time::{Duration, Instant};

use tenure::backend::{Backend, Fencing, Order, Reach, Scope, Wakeup};
use tenure::{Attempt, ErrorKind, FencingToken, Key};

use crate::{
    LEASE, SOON, TestContext, WOKEN, acquire, busy, claim, held, register, renew, waiting, within,
};

/// The store rounds up to this.
const MS: Duration = Duration::from_millis(1);

#[tokio::test]
async fn info_says_what_the_store_promises() {
    let info = TestContext::new().open().await.info();
    assert_eq!((info.name, info.reach), ("sqlite", Reach::Machine));
    assert_eq!((info.fencing, info.order), (Fencing::Strict, Order::Fifo));
    assert_eq!(info.wakeup, Wakeup::Push);
}

#[tokio::test]
async fn a_key_has_one_holder_and_a_busy_response_describes_it() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    let mine = claim("a");
    let grant = acquire(&one, &mine).await;
    assert_eq!(grant.ttl, LEASE);
    let response = busy(&two, &claim("a")).await;
    let holder = response.holder.unwrap();
    assert_eq!((holder.owner.as_str(), holder.token), ("tester", Some(grant.token)));
    assert!(holder.ttl_left.unwrap() > LEASE / 2 && response.retry_after.unwrap() <= LEASE + MS);
    assert_eq!(response.ahead, None);
    assert!(one.release(&mine).await.unwrap());
    assert!(acquire(&two, &claim("a")).await.token > grant.token);
}

#[tokio::test]
async fn release_wakes_only_the_first_waiter() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    let (holder, first, second) = (claim("a"), waiting("a"), waiting("a"));
    acquire(&one, &holder).await;
    assert_eq!(busy(&two, &first).await.ahead, Some(0));
    assert_eq!(busy(&one, &second).await.ahead, Some(1));
    let (mut hint, mut other) = (two.until_free(&first), one.until_free(&second));
    register(&two, &mut hint).await;
    register(&one, &mut other).await;
    assert!(one.release(&holder).await.unwrap());
    assert_eq!(within(WOKEN, hint).await, None);
    // A new claim does not overtake, and the second waiter was not woken.
    busy(&one, &claim("a")).await;
    register(&one, &mut other).await;
    let grant = acquire(&two, &first).await;
    assert!(two.release(&first).await.unwrap());
    within(WOKEN, other).await;
    assert!(acquire(&one, &second).await.token > grant.token);
}

#[tokio::test]
async fn a_hint_that_is_registered_after_the_event_fires_at_once() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    let (holder, waiter) = (claim("a"), waiting("a"));
    acquire(&one, &holder).await;
    busy(&two, &waiter).await;
    one.release(&holder).await.unwrap();
    within(WOKEN, two.until_free(&waiter)).await;
    within(WOKEN, two.until_free(&claim("free"))).await;
    within(WOKEN, one.until_lost(&holder)).await;
}

#[tokio::test]
async fn an_unconfirmed_offer_goes_to_the_next_waiter() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    let (holder, absent, present) = (claim("a"), waiting("a"), waiting("a"));
    acquire(&one, &holder).await;
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
async fn requests_are_idempotent() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    let (mine, first, second) = (claim("a"), waiting("a"), waiting("a"));
    let grant = acquire(&one, &mine).await;
    assert_eq!(acquire(&one, &mine).await, grant);
    for _ in 0..3 {
        assert_eq!(busy(&two, &first).await.ahead, Some(0));
        assert_eq!(busy(&two, &second).await.ahead, Some(1));
    }
    let holdings = one.list(Scope::Key(&mine.key)).await.unwrap();
    assert_eq!(holdings.len(), 1);
    assert_eq!(holdings[0].waiters.len(), 2);
}

#[tokio::test]
async fn an_expired_queue_entry_loses_its_position() {
    let context = TestContext::new();
    let store = context.open().await;
    let (holder, mut slow, quick) = (claim("a"), waiting("a"), waiting("a"));
    slow.ttl = Duration::from_millis(50);
    acquire(&store, &holder).await;
    busy(&store, &slow).await;
    assert_eq!(busy(&store, &quick).await.ahead, Some(1));
    within(SOON, async {
        while busy(&store, &quick).await.ahead != Some(0) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Only another request brings a new queue entry, so the hint fires.
    within(WOKEN, store.until_free(&slow)).await;
    assert_eq!(busy(&store, &slow).await.ahead, Some(1));
}

#[tokio::test]
async fn a_renewal_extends_and_never_creates() {
    let context = TestContext::new();
    let store = context.open().await;
    let (mut mine, other) = (claim("a"), claim("a"));
    acquire(&store, &mine).await;
    mine.ttl = LEASE * 2;
    let responses = store.renew(&[mine.clone(), other.clone(), claim("b")]).await;
    assert_eq!(*responses[0].as_ref().unwrap(), LEASE * 2);
    for lost in &responses[1..] {
        assert_eq!(lost.as_ref().unwrap_err().kind(), ErrorKind::Lost);
    }
    let left = busy(&store, &other).await.retry_after.unwrap();
    assert!(left > LEASE, "{left:?}");
    assert!(store.release(&mine).await.unwrap());
    assert_eq!(renew(&store, &mine).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(held(&store).await, [""; 0]);
}

#[tokio::test]
async fn renewing_a_queue_entry_does_not_grant_the_lock() {
    let context = TestContext::new();
    let store = context.open().await;
    let waiter = waiting("a");
    acquire(&store, &claim("a")).await;
    busy(&store, &waiter).await;
    assert_eq!(renew(&store, &waiter).await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn an_expired_lease_is_lost_and_the_waiter_gets_the_key() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    let (mut mine, waiter) = (claim("a"), waiting("a"));
    mine.ttl = Duration::from_millis(500);
    let began = Instant::now();
    let grant = acquire(&one, &mine).await;
    busy(&two, &waiter).await;
    within(SOON, two.until_free(&waiter)).await;
    assert!(began.elapsed() >= mine.ttl, "the lease had not ended");
    assert!(acquire(&two, &waiter).await.token > grant.token);
    let error = renew(&one, &mine).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("another client"), "{error}");
    assert!(!one.release(&mine).await.unwrap());
    renew(&two, &waiter).await.expect("a late release touched another owner");
}

#[tokio::test]
async fn release_by_another_owner_changes_nothing_and_by_a_waiter_removes_its_entry() {
    let context = TestContext::new();
    let store = context.open().await;
    let (mine, waiter) = (claim("a"), waiting("a"));
    acquire(&store, &mine).await;
    assert!(!store.release(&claim("a")).await.unwrap());
    assert!(!store.release(&claim("b")).await.unwrap());
    busy(&store, &waiter).await;
    assert!(!store.release(&waiter).await.unwrap());
    assert_eq!(busy(&store, &waiting("a")).await.ahead, Some(0));
    renew(&store, &mine).await.unwrap();
}

#[tokio::test]
async fn eviction_ends_exactly_one_grant_and_wakes_its_holder() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    let (mine, next) = (claim("a"), waiting("a"));
    let token = acquire(&one, &mine).await.token;
    busy(&two, &next).await;
    let mut hint = one.until_lost(&mine);
    register(&one, &mut hint).await;
    let other = FencingToken::new(token.get() + 1024).unwrap();
    assert!(!two.evict(&mine.key, other).await.unwrap());
    register(&one, &mut hint).await;
    assert!(two.evict(&mine.key, token).await.unwrap());
    within(WOKEN, hint).await;
    let error = renew(&one, &mine).await.unwrap_err();
    assert!(error.to_string().contains("evicted"), "{error}");
    assert!(!two.evict(&mine.key, token).await.unwrap());
    assert!(acquire(&two, &next).await.token > token);
}

#[tokio::test]
async fn tokens_grow_across_keys_reopening_and_deletion_of_the_store() {
    let context = TestContext::new();
    let mut last = FencingToken::new(1).unwrap();
    let mut grows = |token| {
        assert!(token > last, "{token:?} after {last:?}");
        last = token;
    };
    let store = context.open().await;
    grows(acquire(&store, &claim("a")).await.token);
    grows(acquire(&store, &claim("b")).await.token);
    drop(store);
    let store = context.open().await;
    grows(acquire(&store, &claim("a")).await.token);
    drop(store);
    context.delete(&["", "-wal", "-shm"]);
    grows(acquire(&context.open().await, &claim("a")).await.token);
}

#[tokio::test]
async fn dropping_the_last_clone_releases_everything_and_leaves_no_session() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    let waiter = waiting("a");
    acquire(&one, &claim("a")).await;
    acquire(&one, &claim("b")).await;
    busy(&two, &waiter).await;
    let mut hint = two.until_free(&waiter);
    register(&two, &mut hint).await;
    drop(one.clone());
    assert_eq!(held(&two).await, ["a", "b"], "a clone was not the last");
    drop(one);
    within(WOKEN, hint).await;
    acquire(&two, &waiter).await;
    assert_eq!(held(&two).await, ["a"]);
    drop(two);
    context.until_no_session_is_left().await;
}

#[tokio::test]
async fn a_release_does_not_overtake_the_dropped_request_of_its_claim() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    for _ in 0..50 {
        let mut mine = claim("a");
        {
            let mut request = one.try_acquire(&mine);
            let _ignored = crate::waits(&mut request);
        }
        mine.unconfirmed = true;
        one.release(&mine).await.unwrap();
        let other = claim("a");
        acquire(&two, &other).await;
        two.release(&other).await.unwrap();
    }
}

#[tokio::test]
async fn reading_creates_no_session() {
    let context = TestContext::new();
    let store = context.open().await;
    assert_eq!(held(&store).await, [""; 0]);
    let (key, token) = (Key::new("a").unwrap(), FencingToken::new(1).unwrap());
    assert!(!store.evict(&key, token).await.unwrap());
    assert_eq!(context.sessions(), [""; 0]);
    acquire(&store, &claim("a")).await;
    assert_eq!(
        context.sessions().len(),
        1,
        "a liveness file, and no wake socket before there is a waiter"
    );
}

#[tokio::test]
async fn list_matches_a_prefix_literally() {
    let context = TestContext::new();
    let store = context.open().await;
    for key in ["a%", "a%/x", "ab", "a_", "'; DROP TABLE claim; --", "é"] {
        acquire(&store, &claim(key)).await;
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
async fn a_watcher_without_a_queue_entry_sees_the_key_become_free() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    let (mine, watcher) = (claim("a"), claim("a"));
    acquire(&one, &mine).await;
    let mut hint = two.until_free(&watcher);
    register(&two, &mut hint).await;
    one.release(&mine).await.unwrap();
    within(SOON, hint).await;
    acquire(&two, &watcher).await;
}
