//! The end of a lease in the store, compared with the holder's own deadline.

use std::process::Command;
use std::time::{Duration, Instant};

use tenure::ErrorKind;
use tenure::backend::{Backend, Claim, Scope};
use tenure::backends::Sqlite;

use crate::peer::Peer;
use crate::{LEASE, TestContext, acquire, busy, claim, reader, renew, waiting};

/// When the lease ends in the store: not before this.
async fn end(store: &Sqlite, claim: &Claim) -> Instant {
    let holdings = store.list(Scope::Key(&claim.key)).await.unwrap();
    let left = holdings[0].holder().ttl_left.unwrap();
    Instant::now() + left
}

#[tokio::test]
async fn a_lease_ends_no_earlier_than_the_deadline_of_its_holder() {
    let context = TestContext::new();
    let store = context.open().await;
    for n in 0..100 {
        let mine = claim(&n.to_string());
        let sent = Instant::now();
        acquire(&store, &mine).await;
        let kept = end(&store, &mine).await;
        assert!(kept >= sent + mine.ttl, "grant {n} ends {:?} too early", sent + mine.ttl - kept);
        let sent = Instant::now();
        renew(&store, &mine).await.unwrap();
        let kept = end(&store, &mine).await;
        assert!(kept >= sent + mine.ttl, "renewal {n} ends {:?} early", sent + mine.ttl - kept);
        let sent = Instant::now();
        acquire(&store, &mine).await;
        let kept = end(&store, &mine).await;
        assert!(kept >= sent + mine.ttl, "repeat {n} ends {:?} too early", sent + mine.ttl - kept);
    }
}

#[tokio::test]
async fn a_key_is_not_granted_again_before_the_deadline_of_its_holder() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    for round in 0..20 {
        let (mut mine, next) = (claim("a"), claim("a"));
        mine.ttl = Duration::from_micros(50_300 + 7 * round);
        let sent = Instant::now();
        acquire(&one, &mine).await;
        while two.try_acquire(&next).await.unwrap().granted().is_err() {}
        let early = (sent + mine.ttl).checked_duration_since(Instant::now());
        assert_eq!(early, None, "round {round}: two holders");
        assert!(two.release(&next).await.unwrap());
    }
}

#[tokio::test]
async fn no_request_shortens_a_lease() {
    let context = TestContext::new();
    let store = context.open().await;
    let mut mine = claim("a");
    let sent = Instant::now();
    acquire(&store, &mine).await;
    mine.ttl = Duration::from_millis(50);
    acquire(&store, &mine).await;
    assert!(end(&store, &mine).await >= sent + LEASE, "a repeated request has shortened it");
    renew(&store, &mine).await.unwrap();
    assert!(end(&store, &mine).await >= sent + LEASE, "a renewal has shortened it");
}

#[tokio::test]
async fn no_request_shortens_a_queue_entry() {
    let context = TestContext::new();
    let (store, other) = (context.open().await, context.open().await);
    let (holder, mut first, second) = (claim("a"), waiting("a"), waiting("a"));
    acquire(&store, &holder).await;
    busy(&store, &first).await;
    busy(&store, &second).await;
    first.ttl = Duration::from_millis(50);
    // By a store that does not know that it is queued, and so writes the entry.
    busy(&other, &first).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(busy(&store, &second).await.ahead, Some(1), "the first has lost its position");
}

#[tokio::test]
async fn a_renewal_is_of_the_grant_that_it_names() {
    let context = TestContext::new();
    let store = context.open().await;
    let mut mine = claim("a");
    let evicted = acquire(&store, &mine).await.token;
    mine.token = Some(evicted);
    renew(&store, &mine).await.unwrap();
    assert!(store.evict(&mine.key, evicted).await.unwrap());
    // As a late request of the evicted claim would, which names no grant.
    mine.token = None;
    let token = acquire(&store, &mine).await.token;
    mine.token = Some(evicted);
    assert!(token > evicted);
    let error = renew(&store, &mine).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    mine.token = Some(token);
    renew(&store, &mine).await.unwrap();
}

/// A command that runs what follows with a boot clock that is far ahead; `None` if this machine
/// does not allow that.
fn ahead() -> Option<Command> {
    let command = || {
        let mut command = Command::new("unshare");
        command.args(["-T", "--boottime", "100000", "-f", "--kill-child"]);
        command
    };
    let made = command().arg("true").status();
    made.is_ok_and(|status| status.success()).then(command)
}

#[tokio::test]
async fn another_boot_clock_moves_no_lease_of_several() {
    let Some(command) = ahead() else {
        return eprintln!("no time namespaces here: `unshare -T` is refused");
    };
    let context = TestContext::new();
    let store = context.open().await;
    let mut peer = Peer::behind(command);
    assert_eq!(peer.request(&format!("open {}", context.url())), "open");
    let (mine, writer) = (reader("a"), waiting("a"));
    assert!(peer.request("shared a").starts_with("granted "));
    acquire(&store, &mine).await;
    assert_eq!(busy(&store, &writer).await.holders, 2);
    let holding = store.list(Scope::Key(&mine.key)).await.unwrap().remove(0);
    for holder in holding.holders {
        let left = holder.ttl_left.unwrap();
        assert!(left > LEASE / 2 && left <= LEASE + Duration::from_millis(1), "{holder:?}");
    }
    assert_eq!(peer.request("release"), "true");
    assert!(store.release(&mine).await.unwrap());
    acquire(&store, &writer).await;
}
