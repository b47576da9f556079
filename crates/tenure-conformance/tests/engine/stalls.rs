//! Callers whose runtime is blocked in the middle of a request. Requests are polled on the caller's
//! own thread, so that such a caller must not hold up what others need: a backend may keep a lock
//! of its own for as long as a request is under way.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tenure::backend::{Backend, Claim, Grant, Info, Reach, Scope};
use tenure::backends::Memory;
use tenure::{Attempt, Client, FencingToken, Finding, Guard, Holding, Key, Result};
use tokio::sync::Mutex;

const TTL: Duration = Duration::from_millis(600);
/// How long a stalled caller is not polled: several leases.
const STALL: Duration = Duration::from_millis(2000);
/// How long one request takes.
const TRIP: Duration = Duration::from_millis(5);

/// A server with one connection that carries one request at a time: every request waits for its
/// turn, and keeps it until its response is there.
#[derive(Debug, Default)]
struct OneAtATime {
    memory: Memory,
    connection: Mutex<()>,
}

impl OneAtATime {
    async fn trip<T>(&self, request: impl Future<Output = T>) -> T {
        let _turn = self.connection.lock().await;
        tokio::time::sleep(TRIP).await;
        request.await
    }
}

#[async_trait]
impl Backend for OneAtATime {
    fn info(&self) -> Info {
        // A client of a server has a thread of its own.
        let mut info = self.memory.info();
        info.reach = Reach::Network;
        info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        self.trip(self.memory.try_acquire(claim)).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        self.trip(self.memory.renew(claims)).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.trip(self.memory.release(claim)).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        self.memory.until_free(claim).await
    }

    async fn until_lost(&self, claim: &Claim) {
        self.memory.until_lost(claim).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        self.memory.list(scope).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        self.memory.evict(key, token).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.memory.doctor().await
    }
}

/// Polls a future once, as a runtime does that is blocked after that.
fn poll_once<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// The holder of another lock, which has to be renewed meanwhile.
async fn holder(client: &Client) -> Guard {
    client.lock("held").ttl(TTL).acquire().await.expect("the lock is free")
}

/// Nothing is polled here but the guard's clock, as in a runtime that is blocked.
fn stall(guard: &Guard) {
    let start = Instant::now();
    while start.elapsed() < STALL {
        std::thread::sleep(Duration::from_millis(20));
        guard.check().unwrap_or_else(|lost| panic!("{lost} after {:?}", start.elapsed()));
    }
}

#[tokio::test]
async fn a_caller_that_stalls_in_an_acquire_delays_no_renewal() {
    let client = Client::new(OneAtATime::default());
    let guard = holder(&client).await;
    let mut acquiring = Box::pin(client.lock("k").ttl(TTL).acquire());
    assert!(poll_once(&mut acquiring).is_pending());
    stall(&guard);
    // It was granted meanwhile, and is renewed: the caller finds it held.
    acquiring.await.unwrap().release().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_caller_that_stalls_in_a_release_delays_no_renewal() {
    let client = Client::new(OneAtATime::default());
    let guard = holder(&client).await;
    let released = client.lock("k").ttl(TTL).acquire().await.unwrap();
    let mut releasing = Box::pin(released.release());
    assert!(poll_once(&mut releasing).is_pending());
    stall(&guard);
    releasing.await.unwrap();
    guard.release().await.unwrap();
}

/// The background has completed the request, and the caller drops its future without having seen
/// that.
#[tokio::test]
async fn a_grant_that_a_stalled_caller_never_sees_is_released() {
    let client = Client::new(OneAtATime::default());
    let guard = holder(&client).await;
    let mut acquiring = Box::pin(client.lock("k").ttl(TTL).acquire());
    assert!(poll_once(&mut acquiring).is_pending());
    stall(&guard);
    assert!(client.lock("k").status().await.unwrap().is_some(), "it was not granted meanwhile");
    drop(acquiring);
    client.flush().await.unwrap();
    assert!(client.lock("k").status().await.unwrap().is_none(), "a grant without a guard is left");
    guard.release().await.unwrap();
}

/// Whether a caller polls quickly, slowly or never must not matter to what is left at the server.
#[tokio::test]
async fn callers_that_stall_and_are_dropped_leave_nothing() {
    let client = Client::new(OneAtATime::default());
    for pause in [0, 2, 4, 6, 10, 20, 30, 50, 80] {
        let mut acquiring = Box::pin(client.lock("k").ttl(TTL).acquire());
        assert!(poll_once(&mut acquiring).is_pending());
        std::thread::sleep(Duration::from_millis(pause));
        drop(acquiring);
        client.flush().await.unwrap();
        let left = client.lock("k").status().await.unwrap();
        assert!(left.is_none(), "dropped after {pause} ms, left {left:?}");
    }
}
