//! A program of the first schema that has the file open while a newer one brings it up to date and
//! goes on to use it.

use std::time::{Duration, Instant};

use tenure::backend::{Backend, Mode, Scope};
use tenure::{Attempt, ErrorKind};

use crate::old_program::OldProgram;
use crate::peer::Peer;
use crate::{SOON, TestContext, acquire, busy, claim, reader, renew, waiting, within};

#[tokio::test]
async fn what_is_held_stays_held_when_the_file_is_brought_up_to_date() {
    let context = TestContext::new();
    let old = OldProgram::start(&context);
    let (held, waits) = (claim("a"), waiting("a"));
    let token = old.acquire(&held).unwrap();
    assert_eq!(old.acquire(&waits), None);
    let store = context.open().await;
    assert_eq!(old.number("PRAGMA user_version"), 2);
    let mine = waiting("a");
    let response = busy(&store, &mine).await;
    assert_eq!(response.holder.unwrap().token.map(i64::from), Some(token));
    assert_eq!(response.ahead, Some(1));
    // The running program notices nothing.
    assert!(old.renew(&held));
    assert_eq!(old.acquire(&held), Some(token));
    assert!(old.release(&held));
    busy(&store, &mine).await;
    assert!(old.acquire(&waits).is_some_and(|next| next > token));
    assert!(old.release(&waits));
    let grant = acquire(&store, &mine).await;
    // The older program took one token from the counter, and owns no more.
    assert_eq!(grant.tokens, 1);
    assert!(store.release(&mine).await.unwrap());
    assert_eq!(acquire(&store, &claim("a")).await.tokens, 1024);
    assert_eq!(old.acquire(&claim("a")), None);
}

#[tokio::test]
async fn several_holders_are_one_to_an_older_program() {
    let context = TestContext::new();
    let old = OldProgram::start(&context);
    let (one, two) = (context.open().await, context.open().await);
    let mut permits = [claim("p"), claim("p")];
    permits.iter_mut().for_each(|claim| claim.mode = Mode::permits(1, 3).unwrap());
    for pair in [[reader("a"), reader("a")], permits] {
        let key = pair[0].key.as_str();
        for (store, claim) in [&one, &two].into_iter().zip(&pair) {
            acquire(store, claim).await;
        }
        assert_eq!(old.acquire(&claim(key)), None, "granted beside two holders");
        let waits = waiting(key);
        assert_eq!(old.acquire(&waits), None);
        assert!(!old.release(&claim(key)));
        // By token it evicts what it reads as a token, and 0 is none.
        let marker = "SELECT max(token) FROM claim WHERE key = ?1";
        let token: i64 = old.connection.query_row(marker, [key], |row| row.get(0)).unwrap();
        assert_eq!(token, 0);
        assert!(one.release(&pair[0]).await.unwrap());
        assert_eq!(old.acquire(&claim(key)), None, "granted beside a holder");
        renew(&two, &pair[1]).await.unwrap();
        assert!(two.release(&pair[1]).await.unwrap());
        assert!(old.acquire(&waits).is_some(), "not handed on");
        busy(&one, &reader("a")).await;
    }
}

#[tokio::test]
async fn an_older_program_gets_the_key_after_the_last_lease_and_leaves_none_behind() {
    let context = TestContext::new();
    let old = OldProgram::start(&context);
    let store = context.open().await;
    let (mut short, mut long) = (reader("a"), reader("a"));
    short.ttl = Duration::from_millis(300);
    long.ttl = Duration::from_millis(300);
    acquire(&store, &short).await;
    acquire(&store, &long).await;
    // Renewed alone, it ends later than the other: the key is held until then.
    long.ttl = Duration::from_millis(900);
    let sent = Instant::now();
    renew(&store, &long).await.unwrap();
    let theirs = claim("a");
    while old.acquire(&theirs).is_none() {
        assert!(sent.elapsed() < SOON, "the key stays held");
        std::thread::yield_now();
    }
    assert!(sent.elapsed() >= long.ttl, "granted beside a reader");
    for lost in [&short, &long] {
        assert_eq!(renew(&store, lost).await.unwrap_err().kind(), ErrorKind::Lost);
        assert!(!store.release(lost).await.unwrap());
    }
    assert_eq!(store.list(Scope::Key(&theirs.key)).await.unwrap()[0].holders.len(), 1);
    assert!(old.release(&theirs));
    let holders = [reader("a"), reader("a")];
    for holder in &holders {
        acquire(&store, holder).await;
    }
    let holding = &store.list(Scope::Key(&theirs.key)).await.unwrap()[0];
    assert_eq!(holding.holders.len(), 2, "{holding:?}");
}

#[tokio::test]
async fn a_reader_that_an_older_program_let_in_is_joined_by_others() {
    let context = TestContext::new();
    let old = OldProgram::start(&context);
    let (one, two) = (context.open().await, context.open().await);
    let theirs = claim("a");
    let token = old.acquire(&theirs).unwrap();
    let (mut first, mut second) = (reader("a"), reader("a"));
    (first.waits, second.waits) = (true, true);
    busy(&one, &first).await;
    busy(&two, &second).await;
    assert!(old.release(&theirs));
    let (a, b) = (acquire(&one, &first).await, acquire(&two, &second).await);
    assert!(token < a.token.as_i64() && a.token < b.token, "{token} {a:?} {b:?}");
    assert_eq!(old.acquire(&claim("a")), None);
    assert!(two.release(&second).await.unwrap());
    busy(&two, &claim("a")).await;
    assert!(one.release(&first).await.unwrap());
    assert!(old.acquire(&claim("a")).is_some_and(|last| last > b.token.as_i64()));
}

#[tokio::test]
async fn a_program_killed_in_the_middle_leaves_the_file_as_it_was() {
    let context = TestContext::new();
    let old = OldProgram::start(&context);
    let held = claim("a");
    let token = old.acquire(&held).unwrap();
    let mut peer = Peer::idle();
    let sql = "BEGIN IMMEDIATE; \
               ALTER TABLE claim ADD COLUMN weight INTEGER NOT NULL DEFAULT 2147483647; \
               CREATE TABLE holder (x); PRAGMA user_version = 2; PRAGMA cache_spill = 1; \
               PRAGMA cache_size = 1; CREATE TABLE filler AS SELECT randomblob(1000000) AS x";
    assert_eq!(peer.request(&format!("sql {} {sql}", context.file().display())), "done");
    peer.kill();
    assert_eq!(old.number("PRAGMA user_version"), 1);
    assert!(old.renew(&held));
    let store = context.open().await;
    let holder = busy(&store, &reader("a")).await.holder.unwrap();
    assert_eq!(holder.token.map(i64::from), Some(token));
    assert!(old.release(&held));
    acquire(&store, &reader("a")).await;
    acquire(&store, &reader("a")).await;
}

#[tokio::test]
async fn many_programs_bring_one_file_up_to_date() {
    let mut peers: Vec<Peer> = (0..12).map(|_| Peer::idle()).collect();
    for _ in 0..5 {
        let context = TestContext::new();
        let old = OldProgram::start(&context);
        let held = claim("a");
        let token = old.acquire(&held).unwrap();
        peers.iter_mut().for_each(|peer| peer.send(&format!("open {}", context.url())));
        for peer in &mut peers {
            assert_eq!(peer.response(), "open");
        }
        assert!(old.renew(&held));
        for peer in &mut peers {
            assert_eq!(peer.request("try_acquire a"), "busy");
        }
        assert_eq!(old.acquire(&held), Some(token));
        assert!(old.release(&held));
        for peer in &mut peers {
            peer.send("shared a");
        }
        for peer in &mut peers {
            assert!(peer.response().starts_with("granted "), "readers hold together");
        }
        let store = context.open().await;
        let holding = &store.list(Scope::Key(&held.key)).await.unwrap()[0];
        assert_eq!(holding.holders.len(), peers.len());
        assert_eq!(old.acquire(&held), None);
        for peer in &mut peers {
            assert_eq!(peer.request("release"), "true");
        }
    }
}

#[tokio::test]
async fn an_exclusive_lock_is_handed_between_programs_of_both_versions() {
    let context = TestContext::new();
    let old = OldProgram::start(&context);
    let store = context.open().await;
    let mut last = 0;
    for _ in 0..20 {
        let (theirs, mine) = (waiting("a"), waiting("a"));
        within(SOON, async {
            let token = loop {
                match store.try_acquire(&mine).await.unwrap() {
                    Attempt::Granted(grant) => break grant.token.as_i64(),
                    Attempt::Busy(_) => store.until_free(&mine).await,
                };
            };
            assert!(token > last, "{token} after {last}");
            assert_eq!(old.acquire(&theirs), None);
            assert!(store.release(&mine).await.unwrap());
            let next = old.acquire(&theirs).unwrap();
            assert!(next >= token + 1024, "{next} is inside of the range from {token}");
            last = next;
            assert!(old.release(&theirs));
        })
        .await;
    }
}
