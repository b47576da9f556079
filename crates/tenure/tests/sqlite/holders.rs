//! Several holders of one key, in real processes: each has its own part, and the first waiter is
//! let in as soon as it fits.

use std::time::{Duration, Instant};

use tenure::backend::{Backend, Claim, Mode, Scope};
use tenure::backends::Sqlite;
use tenure::{ErrorKind, FencingToken, Holding, Key};

use crate::peer::Peer;
use crate::{
    SOON, TestContext, WOKEN, acquire, busy, claim, reader, register, renew,
    until_a_waiter_is_queued, waiting, waiting_reader, within,
};

async fn holding(store: &Sqlite, key: &str) -> Holding {
    let key = Key::new(key).unwrap();
    store.list(Scope::Key(&key)).await.unwrap().remove(0)
}

fn permits(key: &str, take: u32, of: u32) -> Claim {
    let mut claim = waiting(key);
    claim.mode = Mode::permits(take, of).unwrap();
    claim
}

#[tokio::test]
async fn a_killed_reader_frees_only_its_part_and_at_once() {
    let context = TestContext::new();
    let store = context.open().await;
    let mut peers = [Peer::start(&context.url()), Peer::start(&context.url())];
    for peer in &mut peers {
        assert!(peer.request("shared a").starts_with("granted "));
    }
    let writer = waiting("a");
    assert_eq!(busy(&store, &writer).await.holders, 2);
    for left in [1, 0] {
        let mut hint = store.until_free(&writer);
        register(&store, &mut hint).await;
        peers[left].kill();
        // The end of either process is noticed at once, not at the next poll.
        within(WOKEN, hint).await;
        if left > 0 {
            assert_eq!(busy(&store, &writer).await.holders, 1);
        }
    }
    acquire(&store, &writer).await;
}

#[tokio::test]
async fn a_first_request_does_not_wait_for_the_leases_of_dead_readers() {
    let context = TestContext::new();
    let mut peers: Vec<Peer> = (0..12).map(|_| Peer::start(&context.url())).collect();
    for peer in &mut peers {
        assert!(peer.request("shared a").starts_with("granted "));
    }
    // More than a request repeats itself for, if it removed them one by one.
    peers.iter_mut().for_each(Peer::kill);
    let store = context.open().await;
    acquire(&store, &claim("a")).await;
    assert_eq!(context.sessions().len(), 1, "{:?}", context.sessions());
    // Neither does a claim of the other kind.
    let mut peer = Peer::start(&context.url());
    assert!(peer.request("shared b").starts_with("granted "));
    let semaphore = permits("b", 1, 2);
    assert_eq!(store.try_acquire(&semaphore).await.unwrap_err().kind(), ErrorKind::Invalid);
    peer.kill();
    acquire(&store, &semaphore).await;
}

#[tokio::test]
async fn a_killed_waiter_lets_in_the_readers_behind_it() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    let mut peer = Peer::start(&context.url());
    let (first, behind, last) = (reader("a"), waiting_reader("a"), waiting_reader("a"));
    acquire(&one, &first).await;
    peer.send("acquire a");
    until_a_waiter_is_queued(&one, &first.key).await;
    assert_eq!(busy(&two, &behind).await.ahead, Some(1));
    assert_eq!(busy(&one, &last).await.ahead, Some(2));
    let mut hint = two.until_free(&behind);
    let mut other = one.until_free(&last);
    register(&two, &mut hint).await;
    register(&one, &mut other).await;
    peer.kill();
    within(WOKEN, hint).await;
    acquire(&two, &behind).await;
    // The same transaction has let in both.
    within(WOKEN, other).await;
    acquire(&one, &last).await;
    assert_eq!(holding(&one, "a").await.holders.len(), 3);
}

#[tokio::test]
async fn the_readers_of_a_run_are_granted_by_one_transaction_and_woken_by_one_message() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    let writer = claim("a");
    acquire(&one, &writer).await;
    // Many more than the queue of a socket has room for, and than one transaction lets in.
    let readers: Vec<Claim> = (0..300).map(|_| waiting_reader("a")).collect();
    for reader in &readers {
        busy(&two, reader).await;
    }
    let mut hints = Vec::new();
    for reader in &readers {
        let mut hint = two.until_free(reader);
        assert!(crate::waits(&mut hint));
        hints.push(hint);
    }
    register(&two, &mut hints[0]).await;
    assert!(one.release(&writer).await.unwrap());
    assert_eq!(holding(&one, "a").await.holders.len(), 256, "one transaction");
    let last = hints.split_off(256);
    let mut tokens = Vec::new();
    for (hints, readers) in [(hints, &readers[..256]), (last, &readers[256..])] {
        within(WOKEN, async {
            for hint in hints {
                hint.await;
            }
        })
        .await;
        for reader in readers {
            tokens.push(acquire(&two, reader).await.token);
        }
    }
    assert!(tokens.is_sorted(), "not in the order of the queue");
    tokens.dedup();
    assert_eq!(tokens.len(), readers.len(), "a token was granted twice");
    busy(&one, &claim("a")).await;
    for reader in &readers {
        assert!(two.release(reader).await.unwrap());
    }
    acquire(&one, &claim("a")).await;
}

#[tokio::test]
async fn an_unconfirmed_offer_of_several_ends_alone() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    let mut stopped = Peer::start(&context.url());
    let (writer, present, next) = (claim("a"), waiting_reader("a"), waiting("a"));
    acquire(&one, &writer).await;
    stopped.send("acquire_shared a");
    until_a_waiter_is_queued(&one, &writer.key).await;
    busy(&two, &present).await;
    stopped.stop();
    assert!(one.release(&writer).await.unwrap());
    acquire(&two, &present).await;
    busy(&one, &next).await;
    // The first end of the two: an offer, and not the lease of the reader that is there.
    let began = Instant::now();
    within(SOON, async {
        while busy(&one, &next).await.holders > 1 {
            one.until_free(&next).await;
        }
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(15), "by its lease, not by its offer");
    renew(&two, &present).await.unwrap();
    assert!(two.release(&present).await.unwrap());
    acquire(&one, &next).await;
    stopped.resume();
    assert!(one.release(&next).await.unwrap());
    assert!(stopped.response().starts_with("granted "));
}

#[tokio::test]
async fn an_eviction_ends_one_of_several_by_any_token_of_its_range() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    let (mut writer, other) = (claim("a"), reader("a"));
    let grant = acquire(&one, &writer).await;
    assert_eq!(grant.tokens, 1024);
    (writer.mode, writer.token) = (Mode::Shared, Some(grant.token));
    let downgraded = acquire(&one, &writer).await;
    assert_eq!(downgraded, grant, "it keeps its tokens");
    let joined = acquire(&two, &other).await;
    assert!(joined.token.get() >= grant.token.get() + 1024);
    assert_eq!(acquire(&one, &writer).await, grant, "repeated, beside another reader");
    let mut hint = one.until_lost(&writer);
    register(&one, &mut hint).await;
    let token = |number| FencingToken::new(number).unwrap();
    let beyond = token(joined.token.get() + 1);
    assert!(!two.evict(&other.key, beyond).await.unwrap());
    assert!(two.evict(&other.key, token(grant.token.get() + 1023)).await.unwrap());
    within(WOKEN, hint).await;
    let error = renew(&one, &writer).await.unwrap_err();
    assert!(error.to_string().contains("evicted"), "{error}");
    // A late downgrade creates nothing.
    assert_eq!(one.try_acquire(&writer).await.unwrap_err().kind(), ErrorKind::Lost);
    renew(&two, &other).await.unwrap();
    assert_eq!(holding(&two, "a").await.holders.len(), 1);
    assert!(two.evict(&other.key, joined.token).await.unwrap());
    acquire(&one, &claim("a")).await;
}

#[tokio::test]
async fn a_watcher_without_a_queue_entry_sees_the_holders_change() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    let (first, second, watcher) = (reader("a"), reader("a"), claim("a"));
    acquire(&one, &first).await;
    for change in ["joins", "leaves"] {
        let mut hint = two.until_free(&watcher);
        register(&two, &mut hint).await;
        match change {
            "joins" => drop(acquire(&one, &second).await),
            _ => assert!(one.release(&second).await.unwrap()),
        }
        within(SOON, hint).await;
        busy(&two, &watcher).await;
    }
}

#[tokio::test]
async fn dropping_a_store_releases_its_readers_and_lets_in_those_behind_its_waiters() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    let (here, there) = (reader("a"), reader("a"));
    acquire(&one, &here).await;
    acquire(&two, &there).await;
    let (writer, behind) = (waiting("a"), waiting_reader("a"));
    busy(&one, &writer).await;
    busy(&two, &behind).await;
    let mut hint = two.until_free(&behind);
    register(&two, &mut hint).await;
    drop(one);
    within(WOKEN, hint).await;
    acquire(&two, &behind).await;
    assert_eq!(holding(&two, "a").await.holders.len(), 2);
    drop(two);
    context.until_no_session_is_left().await;
    acquire(&context.open().await, &claim("a")).await;
}

#[tokio::test]
async fn the_first_end_among_several_lets_a_waiter_in() {
    let context = TestContext::new();
    let (one, two) = (context.open().await, context.open().await);
    let (stays, mut ends) = (permits("a", 1, 3), permits("a", 2, 3));
    ends.ttl = Duration::from_millis(300);
    acquire(&one, &stays).await;
    let sent = Instant::now();
    acquire(&one, &ends).await;
    let waiter = permits("a", 2, 3);
    let response = busy(&two, &waiter).await;
    assert!(response.retry_after.unwrap() <= Duration::from_millis(301), "{response:?}");
    // At the first end, and not at the next poll.
    within(WOKEN, two.until_free(&waiter)).await;
    assert!(sent.elapsed() >= ends.ttl, "before its deadline");
    acquire(&two, &waiter).await;
    assert_eq!(renew(&one, &ends).await.unwrap_err().kind(), ErrorKind::Lost);
    renew(&one, &stays).await.unwrap();
}

#[tokio::test]
async fn no_request_shortens_the_lease_of_one_of_several() {
    let context = TestContext::new();
    let store = context.open().await;
    let (mut mine, other) = (reader("a"), reader("a"));
    let sent = Instant::now();
    acquire(&store, &mine).await;
    acquire(&store, &other).await;
    let ttl = mine.ttl;
    mine.ttl = Duration::from_millis(50);
    acquire(&store, &mine).await;
    renew(&store, &mine).await.unwrap();
    for holder in holding(&store, "a").await.holders {
        assert!(Instant::now() + holder.ttl_left.unwrap() >= sent + ttl, "{holder:?}");
    }
}

/// Writers write two files, and readers compare them, while readers are killed in the middle.
#[tokio::test]
async fn processes_that_read_and_write_never_mix_and_killed_readers_block_none() {
    let context = TestContext::new();
    for name in ["one", "two"] {
        std::fs::write(context.folder().join(name), "0").unwrap();
    }
    let folder = context.folder().display().to_string();
    let mut peers: Vec<Peer> = (0..6).map(|_| Peer::start(&context.url())).collect();
    for peer in &mut peers {
        peer.send(&format!("mix a 45 {folder}"));
    }
    for round in 0..12 {
        let mut killed = Peer::start(&context.url());
        if round % 2 == 0 {
            // Holds, or waits as one of the readers of a run.
            killed.send("acquire_shared a");
            std::thread::sleep(Duration::from_millis(round * 5));
        } else {
            // A waiting writer.
            killed.send("acquire a");
        }
        killed.kill();
    }
    for peer in &mut peers {
        assert_eq!(peer.response(), "mixed");
    }
    let written = std::fs::read_to_string(context.folder().join("two")).unwrap();
    assert_eq!(written, (6 * 15).to_string());
}
