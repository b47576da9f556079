//! Hints that fire at once, and backends and observers that panic, do not disturb a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::{Backend, Claim, Grant, Info, Scope};
use tenure::backends::Memory;
use tenure::{Attempt, Client, Config, Event, FencingToken, Finding, Holding, Key, Result};
use tokio::time::sleep;

use crate::TTL;

#[tokio::test(start_paused = true)]
async fn a_hint_that_fires_at_once_makes_no_hot_loop() {
    let eager = Arc::new(Eager(Memory::new(), AtomicU64::new(0)));
    let client = Client::new(eager.clone());
    let _guard = client.lock("k").acquire().await.unwrap();
    let waiting = client.lock("k").acquire_within(Duration::from_secs(10));
    assert!(matches!(waiting.await.unwrap(), Attempt::Busy(_)));
    let requests = eager.1.load(Ordering::Relaxed);
    assert!(requests < 300, "{requests} requests in ten seconds");
}

#[tokio::test(start_paused = true)]
async fn hints_for_very_many_locks_at_once_make_few_renewals() {
    let eager = Arc::new(Eager(Memory::new(), AtomicU64::new(0)));
    let client = Client::new(eager.clone());
    let mut guards = Vec::new();
    for number in 0..1000 {
        guards.push(client.lock(format!("k{number}")).acquire().await.unwrap());
    }
    let before = eager.1.load(Ordering::Relaxed);
    // The backend is watched after 20 ms, and once more 250 ms later.
    sleep(Duration::from_millis(200)).await;
    let renewals = eager.1.load(Ordering::Relaxed) - before;
    assert!((2..=10).contains(&renewals), "{renewals} calls for 1000 locks");
    drop(guards);
}

/// A backend whose hints fire at once, always, and whose renewals panic now and then.
#[derive(Debug)]
pub(crate) struct Eager(pub(crate) Memory, pub(crate) AtomicU64);

#[async_trait]
impl Backend for Eager {
    fn info(&self) -> Info {
        self.0.info()
    }
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.try_acquire(claim).await
    }
    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        if self.1.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        self.0.renew(claims).await
    }
    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.0.release(claim).await
    }
    async fn until_free(&self, _: &Claim) -> Option<Grant> {
        None
    }
    async fn until_lost(&self, _: &Claim) {}
    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        self.0.list(scope).await
    }
    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        self.0.evict(key, token).await
    }
    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.0.doctor().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_backend_or_observer_that_panics_does_not_stop_the_renewer() {
    let eager = Arc::new(Eager(Memory::new(), AtomicU64::new(0)));
    let panicking = |_: &Event| std::panic::resume_unwind(Box::new("on purpose"));
    let client = Config::default().observe(panicking).with_backend(eager.clone());
    let guard = client.lock("k").acquire().await.unwrap();
    for _ in 0..20 {
        sleep(TTL / 2).await;
        guard.check().unwrap();
    }
    let renewals = eager.1.load(Ordering::Relaxed);
    assert!(renewals < 3000, "hints made {renewals} renewals in ten leases");
    guard.release().await.unwrap();
}
