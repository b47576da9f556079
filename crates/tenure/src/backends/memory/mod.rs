//! Locks inside one process: for tests, and the executable specification that the other backends
//! are compared with. `lock_table.rs` has the rule.
//!
//! **Wake-ups.** Who waits registers under the same mutex under which it found that it has to wait,
//! and who changes a key delivers under that mutex as well. So no change can happen between the
//! check and the registration. A signal only says that something changed; the next check decides.
//!
//! Time is tokio's, so that tests with paused time work.

mod lock_table;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use self::lock_table::{Availability, LockTable};
use crate::backend::{Attempt, Backend, Claim, Grant, Holding, Info, Modes, Reach, Scope};
use crate::error::Result;
use crate::finding::Finding;
use crate::key::Key;
use crate::support::sync::Mutex;
use crate::support::url::Url;
use crate::token::FencingToken;

/// Opens `memory:`, which takes no options of its own.
pub(crate) async fn open(url: Url) -> Result<Memory> {
    url.finish()?;
    Ok(Memory::new())
}

/// Locks inside one process. Clones share the same locks.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use tenure::{Attempt, Client, backends::Memory};
///
/// let memory = Memory::new();
/// let (one, two) = (Client::new(memory.clone()), Client::new(memory));
/// let guard = one.lock("a").acquire().await?;
/// assert!(matches!(two.lock("a").try_acquire().await?, Attempt::Busy(_)));
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Memory {
    locks: Arc<Mutex<LockTable>>,
}

impl Memory {
    /// Locks that are shared only with the clones of this value. Nothing is held.
    pub fn new() -> Memory {
        Memory::default()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory:")
    }
}

#[async_trait]
impl Backend for Memory {
    fn info(&self) -> Info {
        Info {
            reach: Reach::Process,
            busy_leaves_nothing: true,
            modes: Modes::ALL,
            ..Info::new("memory")
        }
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        let mut locks = self.locks.lock();
        match claim.token {
            Some(token) => locks.downgrade(claim, token, Instant::now()).map(Attempt::Granted),
            None => locks.try_acquire(claim, Instant::now()),
        }
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        let mut locks = self.locks.lock();
        let now = Instant::now();
        claims.iter().map(|claim| locks.renew(claim, now)).collect()
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        Ok(self.locks.lock().release(&claim.key, claim.owner, Instant::now()))
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        loop {
            let availability = self.locks.lock().check(claim, Instant::now());
            match availability {
                Availability::Free => return None,
                Availability::Granted(grant) => return Some(grant),
                Availability::Held { wakeup, expires, queued } => tokio::select! {
                    _signal = wakeup.next() => {
                        if !queued {
                            return None;
                        }
                    }
                    // At the end of a lease there is no release that would deliver a signal.
                    () = tokio::time::sleep_until(expires) => {}
                },
            }
        }
    }

    async fn until_lost(&self, claim: &Claim) {
        let Some(ended) = self.locks.lock().watch_holder(claim) else { return };
        // A lock that ended in between has left a permit.
        ended.notified().await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        Ok(self.locks.lock().list(scope, Instant::now()))
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        Ok(self.locks.lock().evict(key, token, Instant::now()))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(vec![Finding::good("reach", "excludes the tasks and threads of this process only")])
    }
}
