//! Real other processes: killed, stopped, racing.

use tenure::Attempt;
use tenure::backend::Backend;

use crate::peer::{self, Peer};
use crate::{
    Bench, RUNG, SOON, busy, claim, held, register, somebody_waits, take, waiting, within,
};

#[tokio::test]
async fn a_peer_takes_and_gives_back() {
    let bench = Bench::new();
    let mut peer = Peer::start(&bench.url());
    let answer = peer.ask("take a");
    let store = bench.open().await;
    let holder = busy(&store, &claim("a")).await.holder.unwrap();
    assert_eq!(holder.pid, peer.pid());
    assert_eq!(answer, format!("granted {}", holder.token.unwrap()));
    assert_eq!(peer.ask("release"), "true");
    take(&store, &claim("a")).await;
    assert_eq!(peer.ask("take a"), "busy");
}

#[tokio::test]
async fn a_release_reaches_a_waiter_in_another_process_and_back() {
    let bench = Bench::new();
    let store = bench.open().await;
    let mut peer = Peer::start(&bench.url());
    let (mine, waiter) = (claim("a"), waiting("a"));
    take(&store, &mine).await;
    peer.tell("acquire a");
    somebody_waits(&store, &mine.key).await;
    store.release(&mine).await.unwrap();
    assert!(peer.answer().starts_with("granted "));
    busy(&store, &waiter).await;
    let mut hint = store.until_free(&waiter);
    register(&store, &mut hint).await;
    assert_eq!(peer.ask("release"), "true");
    within(RUNG, hint).await;
    take(&store, &waiter).await;
}

#[tokio::test]
async fn a_killed_holder_frees_its_keys_at_once() {
    let bench = Bench::new();
    let store = bench.open().await;
    let mut peer = Peer::start(&bench.url());
    for key in ["a", "b", "c"] {
        assert!(peer.ask(&format!("take {key}")).starts_with("granted "));
    }
    let waiter = waiting("a");
    busy(&store, &waiter).await;
    let mut hint = store.until_free(&waiter);
    register(&store, &mut hint).await;
    assert_eq!(held(&store).await, ["a", "b", "c"]);
    peer.kill();
    // The end of the process is heard, not found at the next look.
    within(RUNG, hint).await;
    assert_eq!(held(&store).await, [""; 0], "the dead are in the file, but not shown");
    take(&store, &waiter).await;
    // Who asks for the first time does not wait for the lease of the dead either.
    take(&store, &claim("b")).await;
    assert_eq!(bench.sessions().len(), 2, "only our beacon and bell: {:?}", bench.sessions());
}

#[tokio::test]
async fn who_asks_first_after_a_kill_gets_the_key() {
    let bench = Bench::new();
    let mut peer = Peer::start(&bench.url());
    assert!(peer.ask("take a").starts_with("granted "));
    peer.kill();
    take(&bench.open().await, &claim("a")).await;
}

#[tokio::test]
async fn a_killed_waiter_does_not_hold_up_the_queue() {
    let bench = Bench::new();
    let store = bench.open().await;
    let mut peer = Peer::start(&bench.url());
    let (mine, last) = (claim("a"), waiting("a"));
    take(&store, &mine).await;
    peer.tell("acquire a");
    somebody_waits(&store, &mine.key).await;
    assert_eq!(busy(&store, &last).await.ahead, Some(1));
    peer.kill();
    store.release(&mine).await.unwrap();
    take(&store, &last).await;
}

#[tokio::test]
async fn a_stopped_waiter_costs_an_offer_and_not_its_lease() {
    let bench = Bench::new();
    let store = bench.open().await;
    let mut peer = Peer::start(&bench.url());
    let (mine, last) = (claim("a"), waiting("a"));
    take(&store, &mine).await;
    peer.tell("acquire a");
    somebody_waits(&store, &mine.key).await;
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
    assert!(began.elapsed() > std::time::Duration::from_millis(500), "it had its chance");
    // It is late, but not lost: it goes on when the lock is free again.
    peer.go_on();
    assert!(store.release(&last).await.unwrap());
    assert!(peer.answer().starts_with("granted "));
}

#[tokio::test]
async fn a_child_that_inherits_the_beacon_keeps_the_lock_alive() {
    for (inherit, kept) in [("yes", true), ("no", false)] {
        let bench = Bench::new();
        let store = bench.open().await;
        let mut peer = Peer::start(&format!("{}?inherit={inherit}", bench.url()));
        assert!(peer.ask("take a").starts_with("granted "));
        let child: i32 = peer.ask("spawn").parse().unwrap();
        peer.kill();
        let waiter = waiting("a");
        if kept {
            busy(&store, &waiter).await;
            peer::kill(child);
        }
        // A child that inherits nothing may live on. But not at once: a spawn returns a moment
        // before the kernel closes what the child does not inherit.
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
async fn many_processes_make_one_store() {
    let mut peers: Vec<Peer> = (0..20).map(|_| Peer::idle()).collect();
    // Several times: they meet at another step of the making each time.
    for _ in 0..5 {
        let bench = Bench::new();
        peers.iter_mut().for_each(|peer| peer.tell(&format!("open {}", bench.url())));
        for peer in &mut peers {
            assert_eq!(peer.answer(), "open");
        }
        for (n, peer) in peers.iter_mut().enumerate() {
            peer.tell(&format!("take key-{n}"));
        }
        let mut tokens: Vec<String> = peers.iter_mut().map(Peer::answer).collect();
        assert!(tokens.iter().all(|answer| answer.starts_with("granted ")), "{tokens:?}");
        tokens.sort();
        tokens.dedup();
        assert_eq!(tokens.len(), 20, "a token was given twice");
    }
}

#[tokio::test]
async fn processes_that_race_for_a_key_count_exactly() {
    let bench = Bench::new();
    let counter = bench.folder().join("counter");
    std::fs::write(&counter, "0 0").unwrap();
    let mut peers: Vec<Peer> = (0..8).map(|_| Peer::start(&bench.url())).collect();
    for peer in &mut peers {
        peer.tell(&format!("count a 40 {}", counter.display()));
    }
    for peer in &mut peers {
        assert_eq!(peer.answer(), "counted");
    }
    let counted = std::fs::read_to_string(&counter).unwrap();
    assert!(counted.starts_with("320 "), "{counted}");
}
