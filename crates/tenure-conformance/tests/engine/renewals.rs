//! Renewals fail alone: one that hangs or fails costs no other lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure::backends::Memory;
use tenure::{Client, Key};
use tenure_conformance::fault::Faults;
use tokio::time::sleep;

use crate::hint_handling::Eager;
use crate::probe::Probe;
use crate::{TTL, faulty};

/// Every renewal of the short lease comes too late for it; the long one has all the time.
#[tokio::test(start_paused = true)]
async fn a_short_lease_that_fails_does_not_lose_a_long_one() {
    let (client, _) = faulty(Faults { delay: Duration::from_millis(40), ..Faults::default() });
    let long = client.lock("long").ttl(Duration::from_secs(10)).acquire().await.unwrap();
    let short = client.lock("short").ttl(Duration::from_millis(250));
    let losing = tokio::spawn(async move {
        loop {
            let Ok(guard) = short.acquire().await else { continue };
            guard.lost().await;
        }
    });
    sleep(Duration::from_secs(60)).await;
    long.check().expect("its renewals would be answered in time");
    losing.abort();
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_renewal_hangs_keeps_no_other_unconfirmed() {
    for (ttl, others) in [(3, 1), (6, 1), (6, 100), (30, 100)] {
        let probe = Arc::new(Probe::new(Memory::new()));
        let client = Client::new(probe.clone());
        let ttl = Duration::from_secs(ttl);
        let frozen = client.lock("frozen").ttl(ttl).acquire().await.unwrap();
        let mut guards = Vec::new();
        for number in 0..others {
            let lock = client.lock(format!("k{number}")).ttl(ttl);
            guards.push(lock.acquire().await.unwrap());
        }
        probe.freeze(Key::new("frozen").unwrap());
        sleep(ttl * 3).await;
        assert!(frozen.check().is_err(), "nothing was frozen");
        for guard in &guards {
            guard.check().unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_that_is_won_by_waiting_lasts_its_ttl() {
    let memory = Memory::new();
    let (one, two) = (Client::new(memory.clone()), Client::new(memory));
    let holder = one.lock("k").acquire().await.unwrap();
    let waiter = tokio::spawn(two.lock("k").without_renewal().acquire());
    sleep(TTL / 3 - Duration::from_secs(2)).await;
    holder.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    let left = guard.check().unwrap();
    assert!(left > TTL - Duration::from_secs(1), "{left:?} left of {TTL:?}");
}

#[tokio::test(start_paused = true)]
async fn until_free_with_hints_that_fire_at_once_makes_no_hot_loop() {
    let probe = Arc::new(Probe::new(Eager(Memory::new(), Default::default())));
    let client = Client::new(probe.clone());
    let lock = client.lock("k").renew_every(Duration::from_secs(9));
    let _guard = lock.acquire().await.unwrap();
    let watching = tokio::spawn(lock.until_free());
    sleep(Duration::from_secs(10)).await;
    watching.abort();
    let polls = probe.lists.load(Ordering::Relaxed);
    assert!(polls < 300, "polled {polls} times in ten seconds");
}
