//! What one instance does for all: it takes stock. Which one is decided by a lock that is held for
//! as long as the instance lives.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tenure::{ErrorKind, FencingToken, Lease};

use crate::Shop;

pub(crate) const EVERY: Duration = Duration::from_secs(5);

/// What was counted last, by this instance.
#[derive(Clone, Default)]
pub(crate) struct Stocktaking(Arc<Mutex<Option<Taken>>>);

/// The outcome of one stocktaking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Taken {
    pub(crate) pieces: i64,
    pub(crate) token: FencingToken,
}

impl Stocktaking {
    pub(crate) fn last(&self) -> Option<Taken> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, taken: Option<Taken>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = taken;
    }
}

/// Becomes the leader again and again, until the client is shut down.
pub(crate) async fn lead(shop: Shop) -> tenure::Result<()> {
    let lock = shop.locks.lock("leader").note("stocktaking");
    loop {
        let led = lock.run(|lease| take_stock(&shop, lease)).await;
        shop.stocktaking.set(None);
        match led.map_err(|error| (error.kind(), error)) {
            // The shutdown came while it led, or while it waited.
            Ok(()) | Err((ErrorKind::Closed, _)) => return Ok(()),
            // The lock paces this loop: `run` retries an unreachable server for one lease.
            Err((ErrorKind::Lost | ErrorKind::Unavailable, error)) => eprintln!("shop: {error}"),
            Err((_, error)) => return Err(error),
        }
    }
}

/// Works until it hears that the client shuts down. If the lock is lost, `run` drops this future at
/// its next await.
async fn take_stock(shop: &Shop, lease: Lease) {
    loop {
        match shop.stock.pieces().await {
            Ok(pieces) => shop.stocktaking.set(Some(Taken { pieces, token: lease.token() })),
            Err(error) => eprintln!("shop: {error}"),
        }
        tokio::select! {
            () = lease.closing() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}
