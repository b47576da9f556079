//! What to do after a read: respond, or try to acquire with what the read has shown.

use super::acquire::{Acquisition, Decision};
use super::claims::{GrantKey, PredecessorKey, QueueEntry, StoredGrant};
use super::connection::api::{KvEntry, TxnOp};
use super::enqueue::{JoinRead, JoinedQueue};
use super::grant_request::Preconditions;
use super::layout::Marker;
use super::snapshot::{self, KeySnapshot, LockState};
use crate::backend::{Attempt, Busy, Grant};
use crate::error::Result;

impl Acquisition<'_> {
    /// For a waiter whose turn has not come: reads the lock, and the queue if the lock is free. The
    /// first is left out where the lock is not what it waits for.
    ///
    /// A waiter passes the first entry of the queue if it has seen twice that this entry fits, and
    /// it was not granted: that client has crashed, and its session has not ended yet.
    pub(super) async fn recheck(
        &self,
        entry: &QueueEntry,
        conditions: Preconditions,
    ) -> Result<Decision> {
        let claims = &self.context.claims;
        let owner = self.claim.owner;
        let waits_for_holders = matches!(entry.predecessor, PredecessorKey::Holders { .. });
        if self.claim.mode.is_lock() && !waits_for_holders {
            let lock = self.context.api.read(&self.keys.lock()).await?;
            if let LockState::Held(lock) = snapshot::lock_state(&self.claim.key, lock.as_ref())? {
                claims.update_queue_entry(owner, |entry| entry.stalled = None);
                return self.locked(lock, entry.ahead).await.map(Decision::Respond);
            }
        }
        let snapshot = self.read_snapshot().await?;
        let first = snapshot.first_that_fits();
        let stalled = entry.stalled.is_some() && entry.stalled == first;
        claims.update_queue_entry(owner, |entry| entry.stalled = first);
        self.decide_passing(&snapshot, Some(entry.created), conditions, stalled).await
    }

    /// For a claim that has just joined the queue, from what the transaction read.
    pub(super) async fn decide_after_join(
        &self,
        joined: &JoinedQueue,
        conditions: Preconditions,
    ) -> Result<Decision> {
        let (lock, behind_others) = match &joined.read {
            JoinRead::Lock { lock, behind_others } => (lock.as_ref(), *behind_others),
            JoinRead::All(snapshot) => {
                return self.decide(snapshot, Some(joined.created), conditions).await;
            }
        };
        let ahead = (!behind_others).then_some(0);
        match snapshot::lock_state(&self.claim.key, lock)? {
            LockState::Held(lock) => self.locked(lock, ahead).await.map(Decision::Respond),
            LockState::Free(_) if behind_others => {
                Ok(Decision::Respond(Attempt::Busy(Busy::new(self.claim.key.clone()))))
            }
            LockState::Free(leftover) => {
                Ok(Decision::TryLock(Preconditions { leftover, ..conditions }))
            }
        }
    }

    /// From everything that is stored for the lock. `created` is the index of the claim's own queue
    /// entry.
    pub(super) async fn decide(
        &self,
        snapshot: &KeySnapshot,
        created: Option<u64>,
        conditions: Preconditions,
    ) -> Result<Decision> {
        self.decide_passing(snapshot, created, conditions, false).await
    }

    /// With `passing`, the waiters before this one do not count.
    async fn decide_passing(
        &self,
        snapshot: &KeySnapshot,
        created: Option<u64>,
        conditions: Preconditions,
        passing: bool,
    ) -> Result<Decision> {
        let (key, mode) = (&self.claim.key, self.claim.mode);
        let own = snapshot.own_grant(&self.context.claims, self.claim.owner, &self.record)?;
        if let Some(own) = own {
            return self.own(own).await.map(|grant| Decision::Respond(Attempt::Granted(grant)));
        }
        let state = snapshot::lock_state(key, snapshot.lock.as_ref())?;
        snapshot.check_kind(key, mode, created)?;
        let ahead = created.map(|created| snapshot.ahead(created));
        let blocked = !passing && snapshot.blocking_waiter(mode, created).is_some();
        let busy = match state {
            LockState::Held(lock) => Some(snapshot::busy(key, lock, ahead)),
            LockState::Free(_) if blocked || !snapshot.fits(mode) => {
                // Where it fits, claims that wait come first.
                let ahead = ahead.unwrap_or_else(|| snapshot.ahead(u64::MAX));
                Some(snapshot.busy(key, Some(ahead)))
            }
            LockState::Free(_) => None,
        };
        if let Some(busy) = busy {
            if let Some(created) = created {
                let predecessor = snapshot.predecessor(key, mode, created)?;
                let owner = self.claim.owner;
                let claims = &self.context.claims;
                claims.update_queue_entry(owner, |entry| entry.predecessor = predecessor);
            }
            return Ok(Decision::Respond(Attempt::Busy(busy)));
        }
        let leftover = snapshot.lock.as_ref().map(|lock| lock.modified);
        let index = |marker| snapshot.marker(marker).map(|marker| marker.modified);
        Ok(Decision::TryLock(Preconditions {
            leftover,
            // A marker without entries is left over: the transaction deletes it, at the index seen.
            // With an entry of its own the claim does not check the marker.
            empty_queue: index(Marker::Queue).filter(|_| created.is_none()),
            holders: index(Marker::Holders),
            permits: index(Marker::Permits),
            ..conditions
        }))
    }

    /// The lock is held exclusively, perhaps by this claim itself, if the response to an earlier
    /// request was lost.
    async fn locked(&self, lock: &KvEntry, ahead: Option<u32>) -> Result<Attempt<Grant>> {
        if !snapshot::is_held_by(lock, self.claim.owner, &self.record) {
            return Ok(Attempt::Busy(snapshot::busy(&self.claim.key, lock, ahead)));
        }
        let token = snapshot::token(lock)?;
        let grant = StoredGrant { token, index: lock.modified, key: GrantKey::Lock };
        self.own(grant).await.map(Attempt::Granted)
    }

    /// The claim holds already. If it waited as well, its queue entry would block the claims behind
    /// it.
    async fn own(&self, grant: StoredGrant) -> Result<Grant> {
        let entry = self.keys.queue_entry(self.claim.owner);
        self.context.api.transact(&[TxnOp::Delete(entry)]).await?;
        Ok(self.granted(grant))
    }

    pub(super) async fn read_snapshot(&self) -> Result<KeySnapshot> {
        let entries = self.context.api.read_tree(self.keys.tree()).await?;
        Ok(KeySnapshot::new(&self.claim.key, entries))
    }
}
