//! The hints: reads that Consul answers when something changes.

use std::time::Duration;

use uuid::Uuid;

use super::Inner;
use super::names::{Card, Names};
use super::table::Front;
use super::view::{self, State, View};
use crate::backend::{Claim, Owner};
use crate::error::Result;

impl Inner {
    /// Returns when it is worth asking again.
    pub(super) async fn until_free(&self, claim: &Claim) {
        let watched = match self.table.get(claim.owner).and_then(|record| record.place) {
            None => self.watch_lock(claim).await,
            Some(place) if place.delayed => {
                tokio::time::sleep(jitter(DELAYED)).await;
                self.table.change_place(claim.owner, |place| place.delayed = false);
                return;
            }
            Some(_) => {
                // Of the waiters of one client only the first needs to watch.
                self.table.until_first(claim.owner).await;
                self.watch_queue(claim).await
            }
        };
        if watched.is_err() {
            tokio::time::sleep(jitter(AFTER_ERROR)).await;
        }
    }

    /// Returns when the claim may be gone. A limited number of locks is watched; the others learn
    /// it from their next renewal.
    pub(super) async fn until_lost(&self, claim: &Claim) {
        // Most locks are held for a moment only.
        tokio::time::sleep(WATCH_AFTER.max(claim.ttl / 30)).await;
        let Some(record) = self.table.get(claim.owner) else { return };
        let Some(token) = record.token else { return };
        let Ok(_watch) = self.watches.try_acquire() else {
            return std::future::pending().await;
        };
        let (lock, mut index) = (Names::new(&claim.key).lock(), token.get());
        loop {
            match self.api.watch(&lock, index, WAIT_MAX).await {
                Ok(seen) => {
                    index = seen.index;
                    let held = seen.entry.filter(|lock| self.is_ours(lock, claim.owner, &record));
                    if held.is_none() {
                        return;
                    }
                }
                Err(_unanswered) => tokio::time::sleep(jitter(AFTER_ERROR)).await,
            }
        }
    }

    /// Without a place in the queue: until the lock is free.
    async fn watch_lock(&self, claim: &Claim) -> Result<()> {
        let lock = Names::new(&claim.key).lock();
        let mut index = 0;
        loop {
            let seen = self.api.watch(&lock, index, wait(claim)).await?;
            if let State::Free(_) = view::state(&claim.key, seen.entry.as_ref())? {
                return Ok(());
            }
            index = seen.index;
        }
    }

    /// Watches the one before us, or the lock if there is nobody. Returns when it is our turn, or
    /// when it is time to be heard of again.
    async fn watch_queue(&self, claim: &Claim) -> Result<()> {
        let (names, owner) = (Names::new(&claim.key), claim.owner);
        loop {
            let Some(place) = self.table.get(owner).and_then(|record| record.place) else {
                return Ok(());
            };
            let (front, watched) = match place.front {
                Front::Turn => return Ok(()),
                Front::Unknown => (self.look_around(claim, &names, place.created).await?, false),
                Front::Head { index } => (self.watch_head(claim, &names, index).await?, true),
                Front::Behind { place, owner, index } => {
                    let seen = self.api.watch(&place, index, wait(claim)).await?;
                    match seen.entry {
                        Some(_) => (Front::Behind { place, owner, index: seen.index }, true),
                        None => (self.next_front(claim, &names, owner).await?, false),
                    }
                }
            };
            let turn = matches!(front, Front::Turn);
            self.table.change_place(owner, |place| place.front = front);
            if turn || watched {
                return Ok(());
            }
        }
    }

    /// The one before us is gone. If it holds the lock now, we are next.
    async fn next_front(&self, claim: &Claim, names: &Names, before: Owner) -> Result<Front> {
        let seen = self.api.watch(&names.lock(), 0, wait(claim)).await?;
        let holder = seen.entry.and_then(|lock| Card::decode(&lock.value));
        match holder {
            Some(card) if card.owner == before => Ok(Front::Head { index: seen.index }),
            _ => Ok(Front::Unknown),
        }
    }

    async fn watch_head(&self, claim: &Claim, names: &Names, index: u64) -> Result<Front> {
        let seen = self.api.watch(&names.lock(), index, wait(claim)).await?;
        match view::state(&claim.key, seen.entry.as_ref())? {
            State::Free(_) => Ok(Front::Turn),
            State::Held(_) => Ok(Front::Head { index: seen.index }),
        }
    }

    async fn look_around(&self, claim: &Claim, names: &Names, created: u64) -> Result<Front> {
        let view = View::new(&claim.key, self.api.read_tree(names.tree()).await?);
        self.table.change_place(claim.owner, |place| place.ahead = Some(view.ahead(created)));
        let front = view.front(created);
        match (&front, view::state(&claim.key, view.lock.as_ref())?) {
            (Front::Head { .. }, State::Free(_)) => Ok(Front::Turn),
            _ => Ok(front),
        }
    }
}

/// How long a read waits: short enough to end by itself before the core asks again, which keeps the
/// connection.
fn wait(claim: &Claim) -> Duration {
    jitter(claim.ttl / 4).min(WAIT_MAX)
}

/// Up to an eighth less, so that clients that began together do not stay together.
fn jitter(span: Duration) -> Duration {
    span - span / 8 * u32::from(Uuid::new_v4().as_bytes()[0]) / 256
}

/// How soon to look again at a lock that Consul keeps for its lock-delay, which it does not tell.
pub(super) const DELAYED: Duration = Duration::from_secs(1);
const AFTER_ERROR: Duration = Duration::from_millis(250);
/// How long a lock is held before its loss is watched for.
const WATCH_AFTER: Duration = Duration::from_millis(250);
/// The longest that a read waits; Consul allows ten minutes.
const WAIT_MAX: Duration = Duration::from_secs(60);
