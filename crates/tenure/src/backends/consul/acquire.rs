//! Acquire: one transaction acquires a free lock; a claim that has to wait gets a queue entry.
//!
//! State at the server (see `layout`): `NAME/.lock` is held by the session of the holder.
//! `NAME/.queue`, the queue marker, exists while claims wait. `NAME/.wait/OWNER` is the queue entry
//! of a waiter, and `NAME/.gone/OWNER` the tombstone of a cancelled claim.
//!
//! Every change of keys is one transaction, which Consul applies as a whole or not at all. The lock
//! is acquired by *no tombstone, no lock, no queue marker: lock*; the index of that write,
//! times 1024, is the token. A claim with a queue entry leaves out the check of the marker, and deletes its entry in
//! the same transaction, which wakes the waiter behind it.
//!
//! Who changes what: a holder deletes its own lock, by index (`release`). A waiter deletes its own
//! entry. The last waiter deletes the marker, by index, and so does an acquire that finds a marker
//! without entries. Consul deletes the keys of a session that ends. An operator can delete
//! anything. Foreign clients know only the lock, and leave its key behind without a session when
//! they release.
//!
//! Invariants: a lock is acquired only while its key is absent, or has the index at which it was
//! seen without a session. A claim without an entry never passes one that has an entry.
//!
//! The races that the checks prevent:
//! - Claims of one client share a session, and Consul grants a bare `lock` again to the session
//!   that holds the key. The check of the lock's key refuses the second claim.
//! - A request can arrive after its claim was cancelled: the tombstone refuses it.
//! - A response can be lost: the next request finds the lock with its own owner in the value, and
//!   returns that grant instead of acquiring the lock twice.
//! - The queue can empty or fill between a read and the write: the marker's index is checked.

use super::Context;
use super::claims::{ClaimRecord, PredecessorKey, QueueEntry};
use super::connection::api::{KvEntry, RefusalReason, TxnOp, TxnOutcome, decisive_reason};
use super::enqueue::{self, JoinOutcome, JoinedQueue};
use super::layout::{LOCK_FLAG, LockKeys, LockRecord};
use super::snapshot::{self, KeySnapshot, LockState};
use super::wait::LOCK_DELAY_POLL;
use super::{error, release};
use crate::backend::{Attempt, Busy, Claim, Grant, Holder, HolderInfo};
use crate::error::{Error, ErrorKind, Result};
use crate::support::clock::{Clock, Moment};

/// How often one acquire starts again because its session is gone.
const SESSIONS_MAX: usize = 3;
/// How often one acquire tries to acquire a lock that other clients are quicker to acquire.
const LOCK_TRIES_MAX: usize = 3;

/// One call of `try_acquire`, on one session.
pub(super) struct Acquisition<'a> {
    pub(super) context: &'a Context,
    pub(super) claim: &'a Claim,
    pub(super) keys: LockKeys,
    pub(super) record: ClaimRecord,
    /// The moment from which the engine counts the lease.
    started: Moment,
}

/// What the transaction that acquires the lock assumes, and therefore checks.
#[derive(Clone, Copy, Debug, Default)]
struct Preconditions {
    /// The claim has a queue entry: it may acquire the lock although the queue marker exists.
    queued: bool,
    /// The index of the lock's key, if a foreign client left it behind.
    leftover: Option<u64>,
    /// The index of a queue marker without queue entries.
    empty_queue: Option<u64>,
}

/// The outcome of the transaction that acquires the lock.
enum LockOutcome {
    Granted(Grant),
    Blocked(BlockedBy),
    Refused(RefusalReason),
}

/// Which keys kept the claim from the lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockedBy {
    pub(super) lock: bool,
    pub(super) queue: bool,
}

/// What to do after a read.
enum Decision {
    Respond(Attempt<Grant>),
    TryLock(Preconditions),
}

/// The outcome of an acquisition on one session.
enum RunOutcome {
    Response(Attempt<Grant>),
    SessionGone,
}

/// Acquires the lock, or says what it is busy with. With `claim.waits`, a busy response keeps a
/// queue entry.
pub(super) async fn try_acquire(context: &Context, claim: &Claim) -> Result<Attempt<Grant>> {
    let started = Clock::Boot.now();
    // A session can end between its renewal and the transaction: then a new one is created.
    for _ in 0..SESSIONS_MAX {
        let record = record_of(context, claim).await?;
        let keys = LockKeys::new(&claim.key);
        match (Acquisition { context, claim, keys, record, started }).run().await? {
            RunOutcome::Response(Attempt::Granted(grant))
                if claim.fixed && grant.ttl < claim.ttl =>
            {
                if let Some(grant) = extend_fixed(context, claim, grant, started).await? {
                    return Ok(Attempt::Granted(grant));
                }
                context.claims.remove_with_session(claim.owner);
            }
            RunOutcome::Response(attempt) => return Ok(attempt),
            RunOutcome::SessionGone => context.claims.remove_with_session(claim.owner),
        }
    }
    let message =
        "consul ends the sessions of this client as soon as they are created; see its log";
    Err(Error::new(ErrorKind::Unavailable, message))
}

/// A fixed claim is never renewed, but shares its session with other claims, so that a part of the
/// lease may have passed. Renews the session, so that the grant has the whole ttl. `None` if the
/// session is gone.
async fn extend_fixed(
    context: &Context,
    claim: &Claim,
    grant: Grant,
    started: Moment,
) -> Result<Option<Grant>> {
    let Some(record) = context.claims.get(claim.owner) else { return Ok(None) };
    // A renewal that was sent after this call started covers the whole ttl; an older one does not.
    let age = Clock::Boot.now().since(started);
    let alive = record.session.refresh(&context.api, age).await?;
    let ttl = record.session.lease_from(started).min(claim.ttl);
    Ok(alive.then_some(Grant { ttl, ..grant }))
}

/// The record of the claim, on a session that exists and was renewed lately.
async fn record_of(context: &Context, claim: &Claim) -> Result<ClaimRecord> {
    if let Some(record) = context.claims.get(claim.owner) {
        if record.session.refresh_if_stale(&context.api).await? {
            release::retry_failed(context, &record.session).await;
            return Ok(record);
        }
        context.claims.remove_with_session(claim.owner);
    }
    let session = context.sessions.find_or_create(&context.api, claim, context.lock_delay).await?;
    Ok(context.claims.insert(claim.owner, &claim.key, &session))
}

impl Acquisition<'_> {
    async fn run(&self) -> Result<RunOutcome> {
        let mut conditions = Preconditions::default();
        let mut created = None;
        if let Some(entry) = &self.record.queue_entry {
            created = Some(entry.created);
            conditions.queued = true;
            // A refused write costs the leader as much as any other: read first, unless the watch
            // has shown that it is this claim's turn.
            if !matches!(entry.predecessor, PredecessorKey::Turn) {
                match self.recheck(entry, conditions).await? {
                    Decision::Respond(attempt) => return Ok(RunOutcome::Response(attempt)),
                    Decision::TryLock(next) => conditions = next,
                }
            }
        }
        let waits = self.claim.waits;
        // Where other claims waited a moment ago, the lock would be refused: join at once.
        let join_first =
            waits && !conditions.queued && self.context.claims.take_contended(&self.claim.key);
        let mut known = join_first.then_some(BlockedBy { lock: true, queue: true });
        // Each round that does not end here has learned what to check in the next one.
        for _ in 0..LOCK_TRIES_MAX {
            let blocked = match known.take() {
                Some(blocked) => blocked,
                None => match self.try_lock(conditions).await? {
                    LockOutcome::Granted(grant) => {
                        return Ok(RunOutcome::Response(Attempt::Granted(grant)));
                    }
                    LockOutcome::Refused(reason) => return Ok(self.refused(reason, conditions)),
                    LockOutcome::Blocked(blocked) => blocked,
                },
            };
            let decision = if waits && created.is_none() {
                let joined = match enqueue::join(self, blocked).await? {
                    JoinOutcome::Joined(joined) => joined,
                    JoinOutcome::Refused(reason) => return Ok(self.refused(reason, conditions)),
                };
                created = Some(joined.created);
                conditions.queued = true;
                self.decide_after_join(&joined, conditions).await?
            } else {
                self.decide(&self.read_snapshot().await?, created, conditions).await?
            };
            match decision {
                Decision::Respond(attempt) => return Ok(RunOutcome::Response(attempt)),
                Decision::TryLock(next) => conditions = next,
            }
        }
        Ok(RunOutcome::Response(Attempt::Busy(Busy::new(self.claim.key.clone()))))
    }

    /// For a waiter whose turn has not come: reads the lock, and the queue if the lock is free.
    ///
    /// A waiter passes the first entry of the queue if it has seen the lock free twice with the
    /// same first entry, which did not acquire it: that client has crashed, and its session has not
    /// ended yet.
    async fn recheck(&self, entry: &QueueEntry, conditions: Preconditions) -> Result<Decision> {
        let claims = &self.context.claims;
        let owner = self.claim.owner;
        let lock = self.context.api.read(&self.keys.lock()).await?;
        if let LockState::Held(lock) = snapshot::lock_state(&self.claim.key, lock.as_ref())? {
            claims.update_queue_entry(owner, |entry| entry.stalled = None);
            return self.held(lock, entry.ahead).await.map(Decision::Respond);
        }
        let snapshot = self.read_snapshot().await?;
        let first = snapshot.waiters.first().map(|(_, entry)| entry.created);
        let stalled = entry.stalled.is_some() && entry.stalled == first;
        claims.update_queue_entry(owner, |entry| entry.stalled = first);
        if stalled
            && let LockState::Free(leftover) =
                snapshot::lock_state(&self.claim.key, snapshot.lock.as_ref())?
        {
            return Ok(Decision::TryLock(Preconditions { leftover, ..conditions }));
        }
        self.decide(&snapshot, Some(entry.created), conditions).await
    }

    /// For a claim that has just joined the queue, from what the transaction read.
    async fn decide_after_join(
        &self,
        joined: &JoinedQueue,
        conditions: Preconditions,
    ) -> Result<Decision> {
        let ahead = (!joined.behind_others).then_some(0);
        match snapshot::lock_state(&self.claim.key, joined.lock.as_ref())? {
            LockState::Held(lock) => self.held(lock, ahead).await.map(Decision::Respond),
            LockState::Free(_) if joined.behind_others => {
                Ok(Decision::Respond(Attempt::Busy(Busy::new(self.claim.key.clone()))))
            }
            LockState::Free(leftover) => {
                Ok(Decision::TryLock(Preconditions { leftover, ..conditions }))
            }
        }
    }

    /// From everything that is stored for the lock. `created` is the index of the claim's own queue
    /// entry.
    async fn decide(
        &self,
        snapshot: &KeySnapshot,
        created: Option<u64>,
        conditions: Preconditions,
    ) -> Result<Decision> {
        let ahead = created.map(|created| snapshot.ahead(created));
        let leftover = match snapshot::lock_state(&self.claim.key, snapshot.lock.as_ref())? {
            LockState::Held(lock) => return self.held(lock, ahead).await.map(Decision::Respond),
            LockState::Free(leftover) => leftover,
        };
        let others = ahead.unwrap_or_else(|| snapshot.ahead(u64::MAX));
        if others > 0 {
            // The lock is free, but claims that wait come first.
            let mut busy = Busy::new(self.claim.key.clone());
            busy.ahead = Some(others);
            return Ok(Decision::Respond(Attempt::Busy(busy)));
        }
        // A marker without entries is left over: the transaction deletes it, at the index seen.
        // With an entry of its own the claim does not check the marker.
        let marker = snapshot.queue_marker.as_ref().filter(|_| created.is_none());
        let empty_queue = marker.map(|marker| marker.modified);
        Ok(Decision::TryLock(Preconditions { leftover, empty_queue, ..conditions }))
    }

    /// The lock is held, perhaps by this claim itself, if the response to an earlier request was
    /// lost.
    async fn held(&self, lock: &KvEntry, ahead: Option<u32>) -> Result<Attempt<Grant>> {
        if !snapshot::is_held_by(lock, self.claim.owner, &self.record) {
            return Ok(Attempt::Busy(snapshot::busy(&self.claim.key, lock, ahead)));
        }
        // If it waited as well, its queue entry would block the claims behind it.
        let entry = self.keys.queue_entry(self.claim.owner);
        self.context.api.transact(&[TxnOp::Delete(entry)]).await?;
        self.granted(lock).map(Attempt::Granted)
    }

    async fn try_lock(&self, conditions: Preconditions) -> Result<LockOutcome> {
        let claims = &self.context.claims;
        let owner = self.claim.owner;
        // If this fails, the queue has to be read before it is watched again.
        claims.update_queue_entry(owner, |entry| entry.predecessor = PredecessorKey::Unknown);
        let earlier = claims.begin_request(owner);
        let outcome = self.context.api.transact(&self.lock_ops(conditions)).await?;
        claims.end_request(owner, earlier);
        match outcome {
            TxnOutcome::Committed(entries) => {
                let lock = self.keys.lock();
                let entry = entries.iter().find(|entry| entry.key == lock);
                self.granted(entry.ok_or_else(error::incomplete)?).map(LockOutcome::Granted)
            }
            TxnOutcome::Refused(refusals) => Ok(match decisive_reason(&refusals) {
                RefusalReason::CheckFailed => {
                    // The positions of the checks in `lock_ops`.
                    let failed = |op| refusals.iter().any(|refusal| refusal.op == op);
                    LockOutcome::Blocked(BlockedBy { lock: failed(1), queue: failed(2) })
                }
                reason => LockOutcome::Refused(reason),
            }),
        }
    }

    /// The transaction that acquires the lock: checks, then the lock, then the claim's own queue
    /// entry.
    fn lock_ops(&self, conditions: Preconditions) -> Vec<TxnOp> {
        let keys = &self.keys;
        let owner = self.claim.owner;
        let mut ops = vec![TxnOp::CheckAbsent(keys.tombstone(owner))];
        ops.push(match conditions.leftover {
            Some(index) => TxnOp::CheckIndex(keys.lock(), index),
            None => TxnOp::CheckAbsent(keys.lock()),
        });
        match (conditions.queued, conditions.empty_queue) {
            // The marker may exist: it is there for claims like this one.
            (true, _) => {}
            (false, None) => ops.push(TxnOp::CheckAbsent(keys.queue_marker())),
            (false, Some(index)) => {
                ops.push(TxnOp::CheckIndex(keys.queue_marker(), index));
                ops.push(TxnOp::Delete(keys.queue_marker()));
            }
        }
        ops.push(TxnOp::Lock {
            key: keys.lock(),
            session: self.record.session.id.clone(),
            flags: LOCK_FLAG,
            value: self.lock_record(),
        });
        if conditions.queued {
            // Wakes the next waiter, which watches the lock from then on.
            ops.push(TxnOp::Delete(keys.queue_entry(owner)));
        }
        ops
    }

    async fn read_snapshot(&self) -> Result<KeySnapshot> {
        let entries = self.context.api.read_tree(self.keys.tree()).await?;
        Ok(KeySnapshot::new(&self.claim.key, entries))
    }

    /// The session is gone, or the lock-delay of an ended session keeps the key locked, and Consul
    /// does not say for how long.
    fn refused(&self, reason: RefusalReason, conditions: Preconditions) -> RunOutcome {
        if reason == RefusalReason::SessionGone {
            return RunOutcome::SessionGone;
        }
        let mut busy = Busy::new(self.claim.key.clone());
        let text = "the lock-delay of an ended session; no client holds it";
        busy.holder = Some(Box::new(Holder::new(&HolderInfo::new("consul", "", 0, text))));
        busy.retry_after = Some(LOCK_DELAY_POLL);
        if conditions.queued {
            let owner = self.claim.owner;
            self.context.claims.update_queue_entry(owner, |entry| entry.delayed = true);
        }
        RunOutcome::Response(Attempt::Busy(busy))
    }

    fn granted(&self, lock: &KvEntry) -> Result<Grant> {
        let token = snapshot::token(lock)?;
        self.context.claims.set_granted(self.claim.owner, token);
        // The session may have been renewed before this call: then less than a ttl is certain.
        let lease = self.record.session.lease_from(self.started);
        Ok(Grant::with_range(token, lease.min(self.claim.ttl)))
    }

    /// The value of the lock's key and of the queue entry.
    pub(super) fn lock_record(&self) -> String {
        let record = LockRecord {
            owner: self.claim.owner,
            ttl: self.record.session.ttl,
            lock_delay: self.context.lock_delay,
            holder_info: self.claim.holder_info.clone(),
        };
        record.encode()
    }
}
