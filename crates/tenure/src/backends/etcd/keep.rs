//! Renewing and giving back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};

use super::ask::{self, DELETE, TXN};
use super::fault::{lease_is_gone, unavailable};
use super::proto::{
    DeleteRangeRequest, DeleteRangeResponse, RangeRequest, TxnRequest, TxnResponse,
};
use super::session::Session;
use super::store::Store;
use super::table::{Entry, limit};
use crate::claim::{Claim, LostReason};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};

impl Store {
    /// One keep-alive for each lease, and one read for every hundred claims: that the lease lives
    /// does not say that nobody deleted the claim.
    pub(super) async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        let start = Clock::Boot.now();
        let entries: Vec<_> = claims.iter().map(|claim| self.held(claim)).collect();
        let held: Vec<_> = entries.iter().flatten().collect();
        let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
        let limit = limit(shortest);
        let reads = held.chunks(AT_ONCE).map(|chunk| self.revisions(chunk, limit));
        let (reads, ()) = join(join_all(reads), self.refresh(&held, start, limit)).await;
        let mut revisions = reads.into_iter().flatten();
        entries.into_iter().map(|entry| answer(&entry?, revisions.next(), start)).collect()
    }

    /// Gives back, withdraws or undoes. `true` if the claim was held until now.
    pub(super) async fn give_back(&self, claim: &Claim) -> Result<bool> {
        let Some(entry) = self.table.release(claim) else { return Ok(false) };
        if entry.session.is_dead() {
            self.table.remove(claim);
            return Ok(false);
        }
        let deleting = match claim.doubtful || entry.doubtful {
            true => self.delete_and_void(&entry).await,
            false => self.delete(&entry).await,
        };
        let gone = match deleting {
            Ok(gone) => gone,
            Err(error) if lease_is_gone(&error) => {
                entry.session.bury();
                false
            }
            Err(error) => return Err(error),
        };
        if let Some(useless) = self.table.remove(claim) {
            self.revoke(&useless).await;
        }
        // If an earlier attempt is unanswered, it may be the one that found the claim there.
        Ok(entry.granted && (gone || entry.released.is_some()))
    }

    fn held(&self, claim: &Claim) -> Result<Entry> {
        match self.table.get(claim) {
            Some(entry) if entry.granted && entry.session.is_dead() => {
                Err(Error::gone(LostReason::SessionGone))
            }
            Some(_) => {
                let entry = self.table.find(claim).filter(|entry| entry.granted);
                entry.filter(|entry| is_of(claim, entry)).ok_or_else(not_held)
            }
            None => Err(not_held()),
        }
    }

    /// Waits until every lease is sure to last.
    async fn refresh(&self, held: &[&Entry], start: Moment, limit: Duration) {
        let sessions = held.iter().map(|entry| (entry.session.id, &entry.session));
        let sessions: HashMap<i64, &Arc<Session>> = sessions.collect();
        let lasting = sessions.into_values().map(|session| {
            self.sessions.refresh(session);
            session.until_lasting(start + session.ttl * 5 / 6)
        });
        // What is not confirmed in time is answered with what is left.
        let _in_time = tokio::time::timeout(limit, join_all(lasting)).await;
    }

    /// The create revisions of these claims, 0 for what is not there.
    async fn revisions(&self, held: &[&Entry], limit: Duration) -> Vec<Result<i64>> {
        let read = |entry: &&Entry| RangeRequest { keys_only: true, ..ask::get(&entry.written) };
        let request = ask::look(held.iter().map(read).collect());
        let answer = self.wire.call::<_, TxnResponse>(TXN, request, limit).await;
        let (now, found) = match answer {
            Ok(answer) => (ask::revision(&answer.body), ask::found(answer.body)),
            Err(error) => return vec![Err(error); held.len()],
        };
        let created = |(at, entry): (usize, &&Entry)| {
            let range = found.get(at).ok_or_else(|| unavailable("an answer is incomplete"))?;
            let created = range.kvs.first().map_or(0, |kv| kv.create_revision);
            if Some(created) == entry.revision {
                self.table.change(&entry.claim, |entry| entry.seen = entry.seen.max(now));
            }
            Ok(created)
        };
        held.iter().enumerate().map(created).collect()
    }

    async fn delete(&self, entry: &Entry) -> Result<bool> {
        let request = DeleteRangeRequest { key: entry.written.clone() };
        let limit = limit(entry.claim.ttl);
        let answer = self.wire.call::<_, DeleteRangeResponse>(DELETE, request, limit).await?;
        Ok(answer.body.deleted > 0 || answer.doubtful)
    }

    /// Deletes the claim and leaves a mark, so that a request that is still on its way cannot write
    /// it again. The mark hangs on the same lease: without the lease nothing can be written either.
    async fn delete_and_void(&self, entry: &Entry) -> Result<bool> {
        let (lease, owner) = (entry.session.id, entry.claim.owner);
        let void = ask::put(&self.space.void(lease, owner), String::new(), lease);
        let request = TxnRequest {
            compare: Vec::new(),
            success: vec![void, ask::delete(&entry.written)],
            failure: Vec::new(),
        };
        entry.session.add_void();
        let answer = self.wire.call::<_, TxnResponse>(TXN, request, limit(entry.claim.ttl)).await?;
        Ok(ask::deleted(&answer.body) > 0 || answer.doubtful)
    }
}

/// Whether a renewal is about the grant that is known here, and not about an earlier one.
fn is_of(claim: &Claim, entry: &Entry) -> bool {
    claim.token.is_none_or(|token| Some(token.as_i64()) == entry.revision)
}

fn answer(entry: &Entry, revision: Option<Result<i64>>, start: Moment) -> Result<Duration> {
    let revision = revision.unwrap_or_else(|| Err(unavailable("an answer is missing")))?;
    if entry.session.is_dead() {
        return Err(Error::gone(LostReason::SessionGone));
    }
    if Some(revision) != entry.revision {
        return Err(not_held());
    }
    match entry.session.end().since(start) {
        Duration::ZERO => Err(unavailable("the lease is not confirmed")),
        left => Ok(left.min(entry.claim.ttl)),
    }
}

fn not_held() -> Error {
    Error::new(ErrorKind::Lost, "the claim is no longer at the server")
}

/// Servers refuse more than 128 requests in one transaction, unless told otherwise.
const AT_ONCE: usize = 100;
