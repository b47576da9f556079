//! Real other processes that are killed or stopped, or race for a key.

use tenure::Attempt;
use tenure::backend::Backend;

use crate::peer::{self, Peer};
use crate::{
    SOON, TestContext, WOKEN, acquire, busy, claim, held, register, until_a_waiter_is_queued,
    waiting, within,
};

#[tokio::test]
async fn another_process_acquires_and_releases() {
    let context = TestContext::new();
    let mut peer = Peer::start(&context.url());
    let response = peer.request("try_acquire a");
    let store = context.open().await;
    let holder = busy(&store, &claim("a")).await.holder.unwrap();
    assert_eq!(holder.pid, peer.pid());
    assert_eq!(response, format!("granted {}", holder.token.unwrap()));
    assert_eq!(peer.request("release"), "true");
    acquire(&store, &claim("a")).await;
    assert_eq!(peer.request("try_acquire a"), "busy");
}

#[tokio::test]
async fn release_wakes_a_waiter_in_another_process_and_back() {
    let context = TestContext::new();
    let store = context.open().await;
    let mut peer = Peer::start(&context.url());
    let (mine, waiter) = (claim("a"), waiting("a"));
    acquire(&store, &mine).await;
    peer.send("acquire a");
    until_a_waiter_is_queued(&store, &mine.key).await;
    store.release(&mine).await.unwrap();
    assert!(peer.response().starts_with("granted "));
    busy(&store, &waiter).await;
    let mut hint = store.until_free(&waiter);
    register(&store, &mut hint).await;
    assert_eq!(peer.request("release"), "true");
    within(WOKEN, hint).await;
    acquire(&store, &waiter).await;
}

#[tokio::test]
async fn a_killed_holder_frees_its_keys_at_once() {
    let context = TestContext::new();
    let store = context.open().await;
    let mut peer = Peer::start(&context.url());
    for key in ["a", "b", "c"] {
        assert!(peer.request(&format!("try_acquire {key}")).starts_with("granted "));
    }
    let waiter = waiting("a");
    busy(&store, &waiter).await;
    let mut hint = store.until_free(&waiter);
    register(&store, &mut hint).await;
    assert_eq!(held(&store).await, ["a", "b", "c"]);
    peer.kill();
    // The end of the process is noticed at once, not at the next poll.
    within(WOKEN, hint).await;
    assert_eq!(
        held(&store).await,
        [""; 0],
        "rows of dead sessions are in the file, but not listed"
    );
    acquire(&store, &waiter).await;
    // A first request does not wait for the lease of a dead session either.
    acquire(&store, &claim("b")).await;
    assert_eq!(
        context.sessions().len(),
        2,
        "only one liveness file and wake socket: {:?}",
        context.sessions()
    );
}

#[tokio::test]
async fn the_first_request_after_a_kill_gets_the_key() {
    let context = TestContext::new();
    let mut peer = Peer::start(&context.url());
    assert!(peer.request("try_acquire a").starts_with("granted "));
    peer.kill();
    acquire(&context.open().await, &claim("a")).await;
}

#[tokio::test]
async fn a_killed_waiter_does_not_block_the_queue() {
    let context = TestContext::new();
    let store = context.open().await;
    let mut peer = Peer::start(&context.url());
    let (mine, last) = (claim("a"), waiting("a"));
    acquire(&store, &mine).await;
    peer.send("acquire a");
    until_a_waiter_is_queued(&store, &mine.key).await;
    assert_eq!(busy(&store, &last).await.ahead, Some(1));
    peer.kill();
    store.release(&mine).await.unwrap();
    acquire(&store, &last).await;
}

#[tokio::test]
async fn a_stopped_waiter_delays_the_next_by_an_offer_and_not_by_a_lease() {
    let context = TestContext::new();
    let store = context.open().await;
    let mut peer = Peer::start(&context.url());
    let (mine, last) = (claim("a"), waiting("a"));
    acquire(&store, &mine).await;
    peer.send("acquire a");
    until_a_waiter_is_queued(&store, &mine.key).await;
    busy(&store, &last).await;
    peer.stop();
    store.release(&mine).await.unwrap();
    let began = std::time::Instant::now();
    within(SOON, async {
        while let Attempt::Busy(_) = store.try_acquire(&last).await.unwrap() {
            store.until_free(&last).await;
        }
    })
    .await;
    assert!(began.elapsed() > std::time::Duration::from_millis(500), "the offer was too short");
    // It goes on waiting, and gets the lock when it is free again.
    peer.resume();
    assert!(store.release(&last).await.unwrap());
    assert!(peer.response().starts_with("granted "));
}

#[tokio::test]
async fn a_child_that_inherits_the_liveness_file_keeps_the_lock() {
    for (inherit, kept) in [("yes", true), ("no", false)] {
        let context = TestContext::new();
        let store = context.open().await;
        let mut peer = Peer::start(&format!("{}?inherit={inherit}", context.url()));
        assert!(peer.request("try_acquire a").starts_with("granted "));
        let child: i32 = peer.request("spawn").parse().unwrap();
        peer.kill();
        let waiter = waiting("a");
        if kept {
            busy(&store, &waiter).await;
            peer::kill(child);
        }
        // A child that inherits nothing does not keep the lock. But the key is not free at once: a
        // spawn returns a moment before the kernel closes what the child does not inherit.
        within(SOON, async {
            while let Attempt::Busy(_) = store.try_acquire(&waiter).await.unwrap() {
                store.until_free(&waiter).await;
            }
        })
        .await;
        if !kept {
            peer::kill(child);
        }
    }
}

#[tokio::test]
async fn many_processes_create_one_store() {
    let mut peers: Vec<Peer> = (0..20).map(|_| Peer::idle()).collect();
    // Several times: they meet at another step of the creation each time.
    for _ in 0..5 {
        let context = TestContext::new();
        peers.iter_mut().for_each(|peer| peer.send(&format!("open {}", context.url())));
        for peer in &mut peers {
            assert_eq!(peer.response(), "open");
        }
        for (n, peer) in peers.iter_mut().enumerate() {
            peer.send(&format!("try_acquire key-{n}"));
        }
        let mut tokens: Vec<String> = peers.iter_mut().map(Peer::response).collect();
        assert!(tokens.iter().all(|response| response.starts_with("granted ")), "{tokens:?}");
        tokens.sort();
        tokens.dedup();
        assert_eq!(tokens.len(), 20, "a token was granted twice");
    }
}

#[tokio::test]
async fn processes_that_race_for_a_key_count_exactly() {
    let context = TestContext::new();
    let counter = context.folder().join("counter");
    std::fs::write(&counter, "0 0").unwrap();
    let mut peers: Vec<Peer> = (0..8).map(|_| Peer::start(&context.url())).collect();
    for peer in &mut peers {
        peer.send(&format!("count a 40 {}", counter.display()));
    }
    for peer in &mut peers {
        assert_eq!(peer.response(), "counted");
    }
    let counted = std::fs::read_to_string(&counter).unwrap();
    assert!(counted.starts_with("320 "), "{counted}");
}
