//! Taking: who is first in the order of create revisions holds. A claim that waits is written at
//! once and keeps its place; one that does not is written only if nobody is there.

use std::sync::Arc;

use super::ask::{self, TXN};
use super::fault::{lease_is_gone, unavailable};
use super::names::is_direct;
use super::proto::{KeyValue, RangeResponse, TxnRequest, TxnResponse};
use super::session::Session;
use super::store::Store;
use super::table::{Entry, limit};
use crate::claim::{Attempt, Busy, Claim, Grant, Holder, Note};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

/// Where a claim stands.
enum Place {
    /// It is the oldest.
    First(i64),
    /// Another is older.
    Behind(Behind),
    /// It is not written, since somebody is there and it does not wait.
    Refused(KeyValue),
    /// It is not written, or no longer, or its lease is gone.
    Missing,
}

struct Behind {
    revision: i64,
    /// The next older one, and from which revision on its end is news.
    next: (Vec<u8>, i64),
    holder: KeyValue,
    ahead: Option<u32>,
}

impl Store {
    pub(super) async fn take(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        // A place can be lost with its lease, or be deleted by somebody: then begin anew. Whoever
        // deletes it again and again is not outrun.
        for _ in 0..3 {
            let asked = Clock::Boot.now();
            let entry = match self.table.find(claim) {
                Some(entry) => entry,
                None => {
                    let session = self.session(claim).await?;
                    self.table.enter(claim, session, &self.space)
                }
            };
            self.sessions.refresh(&entry.session);
            match self.place(&entry).await? {
                Place::First(revision) => {
                    if let Some(grant) = self.grant(&entry, revision, asked).await? {
                        return Ok(Attempt::Granted(grant));
                    }
                }
                Place::Behind(behind) => return Ok(Attempt::Busy(self.queued(claim, behind))),
                Place::Refused(holder) => {
                    // Nothing was written, unless an earlier request may still be.
                    if self.table.get(claim).is_some_and(|entry| !entry.doubtful) {
                        self.table.remove(claim);
                    }
                    return Ok(Attempt::Busy(busy(claim, &holder)));
                }
                Place::Missing => {
                    self.table.change(claim, |entry| entry.revision = None);
                }
            }
        }
        Err(unavailable("the claim is deleted as soon as it is written"))
    }

    async fn session(&self, claim: &Claim) -> Result<Arc<Session>> {
        self.sessions.take(&self.wire, claim.ttl, limit(claim.ttl)).await
    }

    async fn place(&self, entry: &Entry) -> Result<Place> {
        let place = match entry.revision {
            Some(revision) => self.look(entry, revision).await,
            None if entry.claim.waits => self.queue_up(entry).await,
            None => self.take_if_free(entry).await,
        };
        match place {
            Err(error) if lease_is_gone(&error) => {
                entry.session.bury();
                Ok(Place::Missing)
            }
            place => place,
        }
    }

    /// Writes the claim, whoever is there, and looks who is older.
    async fn queue_up(&self, entry: &Entry) -> Result<Place> {
        let (prefix, written) = (self.space.claims(&entry.claim.key), &entry.written);
        let void = self.space.void(entry.session.id, entry.claim.owner);
        let put = ask::put(written, entry.claim.note.encode(), entry.session.id);
        let success =
            vec![put, ask::read(ask::last_two(&prefix, 0)), ask::read(ask::first(&prefix))];
        let request = TxnRequest {
            compare: vec![ask::created(written, 0), ask::created(&void, 0)],
            success,
            failure: vec![ask::read(ask::get(written))],
        };
        let answer = self.write(entry, request).await?;
        let (succeeded, now) = (answer.succeeded, ask::revision(&answer));
        let found = ask::found(answer);
        if succeeded {
            return self.order(entry, &prefix, &found, now, true).await;
        }
        match ask::one(found.first()) {
            Some(mine) => self.look(entry, mine.create_revision).await,
            None => Err(withdrawn()),
        }
    }

    /// Writes the claim only if nobody is there: a refusal changes nothing at the server.
    async fn take_if_free(&self, entry: &Entry) -> Result<Place> {
        let (prefix, written) = (self.space.claims(&entry.claim.key), &entry.written);
        let void = self.space.void(entry.session.id, entry.claim.owner);
        let put = ask::put(written, entry.claim.note.encode(), entry.session.id);
        let request = TxnRequest {
            compare: vec![ask::nothing_below(&prefix), ask::created(&void, 0)],
            success: vec![put, ask::read(ask::get(written))],
            failure: vec![ask::read(ask::get(written)), ask::read(ask::first(&prefix))],
        };
        let answer = self.write(entry, request).await?;
        let (succeeded, found) = (answer.succeeded, ask::found(answer));
        match (ask::one(found.first()), ask::one(found.get(1))) {
            (Some(mine), _) if succeeded => Ok(Place::First(mine.create_revision)),
            (Some(mine), _) => self.look(entry, mine.create_revision).await,
            (None, Some(holder)) if is_direct(&holder.key, &prefix) => {
                Ok(Place::Refused(holder.clone()))
            }
            // Only locks with longer names are known to be there: those we do not wait for.
            (None, Some(_)) => self.queue_up(entry).await,
            (None, None) => Err(withdrawn()),
        }
    }

    /// Proves where a claim that was written stands now: that it is there, and who is older.
    async fn look(&self, entry: &Entry, revision: i64) -> Result<Place> {
        let prefix = self.space.claims(&entry.claim.key);
        let reads = vec![ask::last_two(&prefix, revision), ask::first(&prefix)];
        let limit = limit(entry.claim.ttl);
        let answer: TxnResponse = self.wire.call(TXN, ask::look(reads), limit).await?.body;
        let now = ask::revision(&answer);
        self.order(entry, &prefix, &ask::found(answer), now, false).await
    }

    /// Reads the order from the youngest two up to our claim, and the oldest.
    async fn order(
        &self,
        entry: &Entry,
        prefix: &[u8],
        found: &[RangeResponse],
        now: i64,
        youngest: bool,
    ) -> Result<Place> {
        let [two, oldest] = found else { return Err(unavailable("an answer is incomplete")) };
        let Some(mine) = two.kvs.first().filter(|kv| is_mine(kv, entry)) else {
            return Ok(Place::Missing);
        };
        let (Some(next), Some(holder)) = (two.kvs.get(1), oldest.kvs.first()) else {
            return Ok(Place::First(mine.create_revision));
        };
        if !is_direct(&next.key, prefix) || !is_direct(&holder.key, prefix) {
            return self.order_among_all(entry, prefix).await;
        }
        let ahead = match (youngest, next.key == holder.key) {
            (true, _) => u32::try_from(oldest.count - 2).ok(),
            (false, true) => Some(0),
            (false, false) => None,
        };
        let (revision, next) = (mine.create_revision, (next.key.clone(), now + 1));
        Ok(Place::Behind(Behind { revision, next, holder: holder.clone(), ahead }))
    }

    /// The same with locks below ours whose names have a slash, as other programs write them: all
    /// are read, and those left out.
    async fn order_among_all(&self, entry: &Entry, prefix: &[u8]) -> Result<Place> {
        let limit = limit(entry.claim.ttl);
        let request = ask::look(vec![ask::keys(ask::all(prefix))]);
        let answer: TxnResponse = self.wire.call(TXN, request, limit).await?.body;
        let now = ask::revision(&answer);
        let Some(all) = ask::found(answer).pop() else { return Ok(Place::Missing) };
        let queue: Vec<_> = all.kvs.iter().filter(|kv| is_direct(&kv.key, prefix)).collect();
        let Some(rank) = queue.iter().position(|kv| is_mine(kv, entry)) else {
            return Ok(Place::Missing);
        };
        let revision = queue[rank].create_revision;
        if rank == 0 {
            return Ok(Place::First(revision));
        }
        let next = (queue[rank - 1].key.clone(), now + 1);
        let (holder, ahead) = (queue[0].clone(), u32::try_from(rank - 1).ok());
        Ok(Place::Behind(Behind { revision, next, holder, ahead }))
    }

    /// A request that may write the claim. Until it is answered at the first attempt, it may arrive
    /// at any later time.
    async fn write(&self, entry: &Entry, request: TxnRequest) -> Result<TxnResponse> {
        let claim = &entry.claim;
        let mark = |entry: &mut Entry| std::mem::replace(&mut entry.doubtful, true);
        let earlier = self.table.change(claim, mark).unwrap_or(true);
        let answer = self.wire.call(TXN, request, limit(claim.ttl)).await?;
        self.table.change(claim, |entry| entry.doubtful = earlier || answer.doubtful);
        Ok(answer.body)
    }

    /// Grants, if the lease is sure to last for a while. `None` if it is gone.
    async fn grant(&self, entry: &Entry, revision: i64, asked: Moment) -> Result<Option<Grant>> {
        let (session, ttl) = (&entry.session, entry.claim.ttl);
        let left = || session.end().since(Clock::Boot.now());
        // Others share the lease, and a fixed claim gets no second one: it has to be confirmed for
        // the whole ttl first.
        let lasting = match entry.claim.fixed {
            true => asked + ttl,
            false if left() <= session.ttl * 2 / 3 => Clock::Boot.now() + session.ttl * 2 / 3,
            false => asked,
        };
        self.sessions.extend(session, lasting);
        let lasts = session.until_lasting(lasting);
        let _in_time = tokio::time::timeout(limit(ttl), lasts).await;
        if session.is_dead() {
            return Ok(None);
        }
        if left() <= session.ttl / 3 || (entry.claim.fixed && session.end() < lasting) {
            return Err(unavailable("the lease is not confirmed"));
        }
        let number = u64::try_from(revision).ok().and_then(FencingToken::new);
        let token = number.ok_or_else(|| unavailable("a revision is not a number"))?;
        self.table.change(&entry.claim, |entry| {
            (entry.revision, entry.granted, entry.behind) = (Some(revision), true, None);
            entry.seen = entry.seen.max(revision);
        });
        Ok(Some(Grant::new(token, ttl.min(session.end().since(asked)))))
    }

    fn queued(&self, claim: &Claim, behind: Behind) -> Busy {
        self.table.change(claim, |entry| {
            (entry.revision, entry.behind) = (Some(behind.revision), Some(behind.next));
        });
        Busy { ahead: behind.ahead.filter(|_| claim.waits), ..busy(claim, &behind.holder) }
    }
}

/// Our key, on our lease.
fn is_mine(kv: &KeyValue, entry: &Entry) -> bool {
    kv.key == entry.written && kv.lease == entry.session.id
}

fn busy(claim: &Claim, holder: &KeyValue) -> Busy {
    Busy { holder: Some(Box::new(describe(holder))), ..Busy::new(claim.key.clone()) }
}

/// The holder behind a key. What other programs wrote there is shown as their note.
pub(super) fn describe(kv: &KeyValue) -> Holder {
    let token = u64::try_from(kv.create_revision).ok().and_then(FencingToken::new);
    Holder { token, ..Holder::new(&note(kv)) }
}

pub(super) fn note(kv: &KeyValue) -> Note {
    Note::decode(&String::from_utf8_lossy(&kv.value))
}

fn withdrawn() -> Error {
    Error::new(ErrorKind::Unavailable, "etcd: the claim was withdrawn before it was written")
}
