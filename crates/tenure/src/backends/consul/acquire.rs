//! Acquire: one transaction acquires a lock that is free, or permits that are; a claim that has to
//! wait gets a queue entry.
//!
//! State at the server (see `layout`): `NAME/.lock` is held by the session of the exclusive holder.
//! `NAME/.held/OWNER` is the grant of a shared holder, or of one of permits. `NAME/.holders`, the
//! holders marker, exists while there are such grants, and `NAME/.permits` while they are permits.
//! `NAME/.queue`, the queue marker, exists while claims wait. `NAME/.wait/OWNER` is the queue entry
//! of a waiter, and `NAME/.gone/OWNER` the tombstone of a cancelled claim.
//!
//! Every change of keys is one transaction, which Consul applies as a whole or not at all
//! (`grant_request`). The index of the write that creates a grant, times 1024, is its token:
//!
//! - exclusive: *no tombstone, no lock, no queue marker, no holders marker: lock*;
//! - shared: *no tombstone, no lock, no queue marker, no permits marker: hold, and write the
//!   holders marker*;
//! - permits: *no tombstone, no lock, no queue marker, and the holders marker as it was read
//!   together with all permits that are out: hold, and write both markers*.
//!
//! A claim with a queue entry leaves out the check of the queue marker, and deletes its entry in
//! the same transaction, which wakes the waiter behind it.
//!
//! Who changes what: a holder deletes its own grant, by index (`release`), or makes its lock shared
//! (`downgrade`). A waiter deletes its own entry. The last that came deletes a marker, by index,
//! and so does an acquire that finds one without anything that it stands for. Consul deletes the
//! keys of a session that ends. An operator can delete anything. Foreign clients know only the
//! lock: they leave its key behind without a session when they release, and acquire it beside
//! readers.
//!
//! Invariants: every key below `.held` is a grant, and there is none without its marker. A lock is
//! acquired only while its key is absent, or has the index at which it was seen without a session.
//! A claim without an entry never passes one that has an entry. A waiting writer is an entry and
//! nothing else: it blocks later readers because they are behind it, and lets them in by leaving.
//!
//! The races that the checks prevent:
//! - Claims of one client share a session, and Consul grants a bare `lock` again to the session
//!   that holds the key. The check of the key refuses the second claim, and the second request.
//! - A request can arrive after its claim was cancelled: the tombstone refuses it.
//! - A response can be lost: the next request finds the grant with its own owner, and returns it
//!   instead of acquiring twice.
//! - A reader comes while a writer decides that there is none: the reader writes the marker, which
//!   the writer checks. Readers do not check it, and so do not hinder each other.
//! - Two claims to permits count what is out at the same time: each grant writes the marker, so
//!   that the second is refused, and counts again.
//! - The queue can empty or fill between a read and the write: the marker's index is checked.

use super::Context;
use super::claims::{ClaimRecord, PredecessorKey, QueueEntry, StoredGrant};
use super::connection::api::{RefusalReason, TxnOutcome, decisive_reason};
use super::enqueue::{self, JoinOutcome};
use super::grant_request::{self, BlockedBy, Preconditions};
use super::layout::{LockKeys, LockRecord};
use super::wait::LOCK_DELAY_POLL;
use super::{downgrade, release};
use crate::backend::{Attempt, Busy, Claim, Grant, Holder, HolderInfo, Mode};
use crate::error::{Error, ErrorKind, Result};
use crate::support::clock::{Clock, Moment};

/// How often one acquire starts again because its session is gone.
const SESSIONS_MAX: usize = 3;
/// How often one acquire tries to acquire a lock that other clients are quicker to acquire.
const LOCK_TRIES_MAX: usize = 3;
/// How often one acquire tries to acquire permits: each failure means that another claim got some
/// of them, which may leave enough for this one.
const PERMIT_TRIES_MAX: usize = 16;

/// One call of `try_acquire`, on one session.
pub(super) struct Acquisition<'a> {
    pub(super) context: &'a Context,
    pub(super) claim: &'a Claim,
    pub(super) keys: LockKeys,
    pub(super) record: ClaimRecord,
    /// The moment from which the engine counts the lease.
    started: Moment,
}

/// The outcome of the transaction that acquires the lock.
enum LockOutcome {
    Granted(Grant),
    Blocked(BlockedBy),
    Refused(RefusalReason),
}

/// What to do after a read.
pub(super) enum Decision {
    Respond(Attempt<Grant>),
    TryLock(Preconditions),
}

/// What an acquisition begins with.
enum Start {
    Respond(Attempt<Grant>),
    TryLock(Preconditions),
    Join(BlockedBy),
}

/// The outcome of an acquisition on one session.
enum RunOutcome {
    Response(Attempt<Grant>),
    SessionGone,
}

/// Acquires the lock, or says what it is busy with. With `claim.waits`, a busy response keeps a
/// queue entry.
pub(super) async fn try_acquire(context: &Context, claim: &Claim) -> Result<Attempt<Grant>> {
    if let (Mode::Shared, Some(token)) = (claim.mode, claim.token) {
        return downgrade::downgrade(context, claim, token).await.map(Attempt::Granted);
    }
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
        let queue_entry = self.record.queue_entry.as_ref();
        let mut created = queue_entry.map(|entry| entry.created);
        let (mut conditions, mut known) = match self.begin(queue_entry).await? {
            Start::Respond(attempt) => return Ok(RunOutcome::Response(attempt)),
            Start::TryLock(conditions) => (conditions, None),
            Start::Join(blocked) => (Preconditions::default(), Some(blocked)),
        };
        let is_lock = self.claim.mode.is_lock();
        // Each round that does not end here has learned what to check in the next one.
        for _ in 0..(if is_lock { LOCK_TRIES_MAX } else { PERMIT_TRIES_MAX }) {
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
            let decision = if self.claim.waits && created.is_none() {
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

    /// What to begin with. A refused write costs the leader as much as any other: a waiter reads
    /// first, unless the watch has shown that it is its turn. Permits have to be counted in any
    /// case.
    async fn begin(&self, queue_entry: Option<&QueueEntry>) -> Result<Start> {
        let mut conditions = Preconditions::default();
        let is_lock = self.claim.mode.is_lock();
        let decision = if let Some(entry) = queue_entry {
            conditions.queued = true;
            if matches!(entry.predecessor, PredecessorKey::Turn) && is_lock {
                return Ok(Start::TryLock(conditions));
            }
            self.recheck(entry, conditions).await?
        } else if !is_lock {
            match self.decide(&self.read_snapshot().await?, None, conditions).await? {
                Decision::Respond(Attempt::Busy(_)) if self.claim.waits => {
                    return Ok(Start::Join(BlockedBy::HOLDERS));
                }
                decision => decision,
            }
        } else if self.claim.waits && self.context.claims.take_contended(&self.claim.key) {
            // Where other claims waited a moment ago, the lock would be refused: join at once.
            return Ok(Start::Join(BlockedBy::QUEUE));
        } else {
            return Ok(Start::TryLock(conditions));
        };
        Ok(match decision {
            Decision::Respond(attempt) => Start::Respond(attempt),
            Decision::TryLock(conditions) => Start::TryLock(conditions),
        })
    }

    async fn try_lock(&self, conditions: Preconditions) -> Result<LockOutcome> {
        let claims = &self.context.claims;
        let owner = self.claim.owner;
        // If this fails, the queue has to be read before it is watched again.
        claims.update_queue_entry(owner, |entry| entry.predecessor = PredecessorKey::Unknown);
        let earlier = claims.begin_request(owner);
        let ops = grant_request::ops(self, conditions);
        let outcome = self.context.api.transact(&ops).await?;
        claims.end_request(owner, earlier);
        match outcome {
            TxnOutcome::Committed(entries) => {
                let grant = grant_request::granted(self, &entries)?;
                Ok(LockOutcome::Granted(self.granted(grant)))
            }
            TxnOutcome::Refused(refusals) => Ok(match decisive_reason(&refusals) {
                RefusalReason::CheckFailed => {
                    LockOutcome::Blocked(grant_request::blocked_by(self, &ops, &refusals))
                }
                reason => LockOutcome::Refused(reason),
            }),
        }
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

    pub(super) fn granted(&self, grant: StoredGrant) -> Grant {
        self.context.claims.set_granted(self.claim.owner, grant);
        // The session may have been renewed before this call: then less than a ttl is certain.
        let lease = self.record.session.lease_from(self.started);
        Grant::with_range(grant.token, lease.min(self.claim.ttl))
    }

    /// The value of the grant's key and of the queue entry.
    pub(super) fn lock_record(&self) -> String {
        let record = LockRecord {
            owner: self.claim.owner,
            ttl: self.record.session.ttl,
            lock_delay: self.context.lock_delay,
            mode: self.claim.mode,
            downgraded: None,
            holder_info: self.claim.holder_info.clone(),
        };
        record.encode()
    }
}
