//! Tasks that hold one lock by turns, and check that they are alone, while a fault is injected.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::{ErrorKind, FencingToken, Lease, Lock};
use tokio::task::JoinSet;

use crate::context::{soon, until};

/// How long servers may need until they grant again: elections and restarts on a busy machine.
const RECOVERY: Duration = Duration::from_secs(60);

/// What a fault may do to the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// It costs time: every acquire gets its lock, and no lock is lost.
    Time,
    /// It may end an acquire or a lock, but never double or reorder one.
    Locks,
}

/// Tasks that hold one lock by turns.
#[derive(Debug)]
pub struct Load {
    seen: Arc<Seen>,
    tasks: JoinSet<Result<()>>,
}

/// What all of them see.
#[derive(Debug, Default)]
struct Seen {
    stop: AtomicBool,
    grants: AtomicU64,
    holder: Mutex<Holder>,
}

#[derive(Debug, Default)]
struct Holder {
    /// The holder, until it releases.
    inside: Option<Lease>,
    /// The highest token so far.
    last: Option<FencingToken>,
}

impl Load {
    /// A task for each of these, which are one lock as several clients see it.
    pub fn start(locks: impl IntoIterator<Item = Lock>, harm: Harm) -> Load {
        let seen = Arc::<Seen>::default();
        let mut tasks = JoinSet::new();
        for lock in locks {
            let seen = seen.clone();
            tasks.spawn(async move {
                while !seen.stop.load(Ordering::SeqCst) {
                    seen.turn(&lock, harm).await?;
                }
                Ok(())
            });
        }
        Load { seen, tasks }
    }

    /// Waits for so many more grants.
    ///
    /// # Errors
    ///
    /// They do not come.
    pub async fn go_on(&self, more: u64) -> Result<()> {
        let count = || self.seen.grants.load(Ordering::SeqCst);
        let goal = count() + more;
        until(RECOVERY, "more grants", async || Ok((count() >= goal).then_some(()))).await
    }

    /// Ends the tasks.
    ///
    /// # Errors
    ///
    /// One of them saw something that must not be.
    pub async fn finish(mut self) -> Result<()> {
        self.seen.stop.store(true, Ordering::SeqCst);
        while let Some(task) = soon("the end of the load", self.tasks.join_next()).await? {
            task??;
        }
        Ok(())
    }
}

impl Seen {
    async fn turn(&self, lock: &Lock, harm: Harm) -> Result<()> {
        let guard = match lock.acquire().await {
            Err(_) if harm == Harm::Locks => return Ok(()),
            guard => guard.context("acquire")?,
        };
        let trouble = self.enter(guard.lease());
        tokio::task::yield_now().await;
        // A holder that has lost its lock may find the next one inside.
        let held = guard.check();
        self.leave(guard.lease());
        if harm == Harm::Time {
            held.clone().context("lost by a fault that ends no lock")?;
        }
        if held.is_ok() {
            trouble?;
        }
        self.grants.fetch_add(1, Ordering::SeqCst);
        match guard.release().await {
            // No response in time: it goes on in the background.
            Err(error) if harm == Harm::Locks || error.kind() == ErrorKind::Unavailable => Ok(()),
            response => response.context("release"),
        }
    }

    /// Fails if another task holds, or has held with a higher token.
    fn enter(&self, lease: &Lease) -> Result<()> {
        let mut holder = self.holder();
        let before = holder.inside.replace(lease.clone());
        let last = holder.last.max(Some(lease.token()));
        let last = std::mem::replace(&mut holder.last, last);
        let alone = before.is_none_or(|before| before.check().is_err());
        ensure!(alone, "two hold");
        ensure!(last < Some(lease.token()), "{} came after {last:?}", lease.token());
        Ok(())
    }

    fn leave(&self, lease: &Lease) {
        let mut holder = self.holder();
        holder.inside.take_if(|inside| inside.token() == lease.token());
    }

    fn holder(&self) -> MutexGuard<'_, Holder> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two keys stand for a server that has given one lock away twice.
    #[tokio::test]
    async fn two_holders_are_noticed_unless_the_first_has_lost() {
        let client = tenure::connect("memory:").await.unwrap();
        let (one, other) = (client.lock("one").acquire().await, client.lock("other").acquire());
        let (one, other) = (one.unwrap(), other.await.unwrap());
        let seen = Seen::default();
        seen.enter(one.lease()).unwrap();
        let error = seen.enter(other.lease()).unwrap_err();
        assert!(error.to_string().contains("two hold"), "{error}");
        let seen = Seen::default();
        seen.enter(one.lease()).unwrap();
        one.release().await.unwrap();
        seen.enter(other.lease()).unwrap();
    }

    #[tokio::test]
    async fn a_token_that_goes_back_is_noticed() {
        let (old, new) = (tenure::connect("memory:").await, tenure::connect("memory:").await);
        let (old, new) = (old.unwrap().lock("k"), new.unwrap().lock("k"));
        for _ in 0..9 {
            old.acquire().await.unwrap().release().await.unwrap();
        }
        let seen = Seen::default();
        seen.turn(&old, Harm::Time).await.unwrap();
        let error = seen.turn(&new, Harm::Time).await.unwrap_err();
        assert!(format!("{error:#}").contains("came after"), "{error:#}");
    }
}
