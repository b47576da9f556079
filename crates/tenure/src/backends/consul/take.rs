//! Asking for a lock: one transaction if it is free, a place in the queue if it is not.

use super::Inner;
use super::api::{Entry, Op, Txn, Why};
use super::names::{Card, LOCK_FLAG, Names};
use super::table::{Front, Place, Record, stale};
use super::view::{self, State, View};
use super::wait::DELAYED;
use crate::backend::{Claim, Grant, Note};
use crate::claim::{Attempt, Busy, Holder};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};

/// An ask under way.
struct Asking<'a> {
    inner: &'a Inner,
    claim: &'a Claim,
    names: Names,
    record: Record,
    /// When the core began to count.
    asked: Moment,
}

/// On which grounds the lock is bid for.
#[derive(Clone, Copy, Debug, Default)]
struct Bid {
    /// As one who has waited.
    waited: bool,
    /// The index of the lock's key, if a peer left it behind.
    left: Option<u64>,
    /// The index of a queue in which nobody waits any more.
    empty: Option<u64>,
}

/// What became of a bid.
enum Outcome {
    Won(Grant),
    /// Somebody has the lock, or others wait for it.
    Crossed(Crossed),
    Refused(Why),
}

/// Which keys were in the way.
#[derive(Clone, Copy, Debug)]
struct Crossed {
    lock: bool,
    queue: bool,
}

/// A place in the queue, and what was seen when it was taken.
struct Joined {
    created: u64,
    lock: Option<Entry>,
    /// Whether others were there before.
    behind: bool,
}

/// The session is gone: begin anew.
enum Step {
    Answer(Attempt<Grant>),
    SessionGone,
}

impl Inner {
    /// Takes the lock, or says who is in the way.
    pub(super) async fn take(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        let asked = Clock::Boot.now();
        for _ in 0..SESSIONS_MAX {
            let record = self.record(claim).await?;
            let names = Names::new(&claim.key);
            match (Asking { inner: self, claim, names, record, asked }).ask().await? {
                Step::Answer(Attempt::Granted(grant)) if claim.fixed && grant.ttl < claim.ttl => {
                    if let Some(grant) = self.lengthen(claim, grant, asked).await? {
                        return Ok(Attempt::Granted(grant));
                    }
                    self.table.lose(claim.owner);
                }
                Step::Answer(attempt) => return Ok(attempt),
                Step::SessionGone => self.table.lose(claim.owner),
            }
        }
        let message = "consul ends our sessions as soon as they are made; look at its log";
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// A fixed claim gets no second lease, and others share its session: it is granted with the
    /// whole ttl, which a renewal after its request gives. `None` if the session is gone.
    async fn lengthen(&self, claim: &Claim, grant: Grant, asked: Moment) -> Result<Option<Grant>> {
        let Some(record) = self.table.get(claim.owner) else { return Ok(None) };
        let age = Clock::Boot.now().since(asked);
        let alive = record.session.refresh(&self.api, age).await?;
        let ttl = record.session.lease_from(asked).min(claim.ttl);
        Ok(alive.then(|| Grant::new(grant.token, ttl)))
    }

    /// What is known of the claim, on a session that lives and was renewed lately.
    async fn record(&self, claim: &Claim) -> Result<Record> {
        if let Some(record) = self.table.get(claim.owner) {
            if record.session.refresh(&self.api, stale(record.session.ttl)).await? {
                self.pay_debts(&record.session).await;
                return Ok(record);
            }
            self.table.lose(claim.owner);
        }
        let session = self.sessions.find(&self.api, claim, self.lock_delay).await?;
        Ok(self.table.enter(claim.owner, &claim.key, &session))
    }
}

impl Asking<'_> {
    async fn ask(&self) -> Result<Step> {
        let (mut bid, mut created) = (Bid::default(), None);
        if let Some(place) = &self.record.place {
            created = Some(place.created);
            bid.waited = true;
            if !matches!(place.front, Front::Turn)
                && let Some(answer) = self.look_first(place, &mut bid).await?
            {
                return Ok(Step::Answer(answer));
            }
        }
        let waits = self.claim.waits;
        // Where others waited a moment ago, a bid would be refused.
        let crowded = waits && !bid.waited && self.inner.table.was_crowded(&self.claim.key);
        let mut crossed = crowded.then_some(Crossed { lock: true, queue: true });
        for _ in 0..BIDS_MAX {
            let crossed = match crossed.take() {
                Some(crossed) => crossed,
                None => match self.bid(bid).await? {
                    Outcome::Won(grant) => return Ok(Step::Answer(Attempt::Granted(grant))),
                    Outcome::Refused(Why::Session) => return Ok(Step::SessionGone),
                    Outcome::Refused(_) => return Ok(self.delayed(bid)),
                    Outcome::Crossed(crossed) => crossed,
                },
            };
            let answer = if waits && created.is_none() {
                let joined = match self.queue_up(crossed).await? {
                    Ok(joined) => joined,
                    Err(Why::Session) => return Ok(Step::SessionGone),
                    Err(_) => return Ok(self.delayed(bid)),
                };
                (bid.waited, created) = (true, Some(joined.created));
                self.welcome(&joined, &mut bid).await?
            } else {
                self.judge(&self.view().await?, created, &mut bid).await?
            };
            if let Some(answer) = answer {
                return Ok(Step::Answer(answer));
            }
        }
        Ok(Step::Answer(Attempt::Busy(Busy::new(self.claim.key.clone()))))
    }

    /// A waiter whose turn it is not reads before it writes: a refused write costs the leader as
    /// much as any other. Only who sees the lock free twice, with the same one in front who does
    /// not take it, passes that one by: it is dead, and its session has not ended yet.
    async fn look_first(&self, place: &Place, bid: &mut Bid) -> Result<Option<Attempt<Grant>>> {
        let owner = self.claim.owner;
        let lock = self.inner.api.read(&self.names.lock()).await?;
        if let State::Held(entry) = view::state(&self.claim.key, lock.as_ref())? {
            self.inner.table.change_place(owner, |place| place.stalled = None);
            return self.held(entry, place.ahead).await.map(Some);
        }
        let view = self.view().await?;
        let first = view.places.first().map(|(_, entry)| entry.created);
        let stalled = place.stalled.is_some() && place.stalled == first;
        self.inner.table.change_place(owner, |place| place.stalled = first);
        if stalled && let State::Free(left) = view::state(&self.claim.key, view.lock.as_ref())? {
            bid.left = left;
            return Ok(None);
        }
        self.judge(&view, Some(place.created), bid).await
    }

    /// The answer to somebody who has just joined the queue, or the grounds for the next bid.
    async fn welcome(&self, joined: &Joined, bid: &mut Bid) -> Result<Option<Attempt<Grant>>> {
        let ahead = (!joined.behind).then_some(0);
        match view::state(&self.claim.key, joined.lock.as_ref())? {
            State::Held(entry) => self.held(entry, ahead).await.map(Some),
            State::Free(_) if joined.behind => {
                Ok(Some(Attempt::Busy(Busy::new(self.claim.key.clone()))))
            }
            State::Free(left) => {
                bid.left = left;
                Ok(None)
            }
        }
    }

    /// The answer to what was seen, or the grounds for the next bid.
    async fn judge(
        &self,
        view: &View,
        created: Option<u64>,
        bid: &mut Bid,
    ) -> Result<Option<Attempt<Grant>>> {
        let ahead = created.map(|created| view.ahead(created));
        match view::state(&self.claim.key, view.lock.as_ref())? {
            State::Held(entry) => return self.held(entry, ahead).await.map(Some),
            State::Free(left) => bid.left = left,
        }
        let others = ahead.unwrap_or_else(|| view.ahead(u64::MAX));
        if others > 0 {
            // Free, but those who wait come first.
            let mut busy = Busy::new(self.claim.key.clone());
            busy.ahead = Some(others);
            return Ok(Some(Attempt::Busy(busy)));
        }
        bid.empty = view.queue.as_ref().filter(|_| created.is_none()).map(|queue| queue.modified);
        Ok(None)
    }

    /// The lock is held: perhaps by this very claim, if the answer to an earlier ask was lost.
    async fn held(&self, entry: &Entry, ahead: Option<u32>) -> Result<Attempt<Grant>> {
        if !view::is_held_by(entry, self.claim.owner, &self.record) {
            return Ok(Attempt::Busy(view::busy(&self.claim.key, entry, ahead)));
        }
        // Where it waited as well, the place has to go.
        self.inner.api.transact(&[Op::Delete(self.names.place(self.claim.owner))]).await?;
        self.granted(entry).map(Attempt::Granted)
    }

    async fn bid(&self, bid: Bid) -> Result<Outcome> {
        let (table, owner) = (&self.inner.table, self.claim.owner);
        table.change_place(owner, |place| place.front = Front::Unknown);
        let earlier = table.doubts(owner);
        let answer = self.inner.api.transact(&self.steps(bid)).await?;
        table.knows(owner, earlier);
        match answer {
            Txn::Done(entries) => {
                let lock = self.names.lock();
                let entry = entries.iter().find(|entry| entry.key == lock);
                self.granted(entry.ok_or_else(incomplete)?).map(Outcome::Won)
            }
            Txn::Refused(refusals) => Ok(match worst(&refusals) {
                Why::Check => {
                    let crosses = |op| refusals.iter().any(|refusal| refusal.op == op);
                    Outcome::Crossed(Crossed { lock: crosses(1), queue: crosses(2) })
                }
                why => Outcome::Refused(why),
            }),
        }
    }

    /// The checks make a transaction of it that can be refused; a bare lock would be granted again
    /// to another claim of the same session.
    fn steps(&self, bid: Bid) -> Vec<Op> {
        let (names, owner) = (&self.names, self.claim.owner);
        let mut steps = vec![Op::CheckAbsent(names.grave(owner))];
        steps.push(match bid.left {
            Some(index) => Op::CheckIndex(names.lock(), index),
            None => Op::CheckAbsent(names.lock()),
        });
        match (bid.waited, bid.empty) {
            (true, _) => {}
            (false, None) => steps.push(Op::CheckAbsent(names.queue())),
            (false, Some(index)) => {
                steps.push(Op::CheckIndex(names.queue(), index));
                steps.push(Op::Delete(names.queue()));
            }
        }
        steps.push(Op::Lock {
            key: names.lock(),
            session: self.record.session.id.clone(),
            flags: LOCK_FLAG,
            value: self.card(),
        });
        if bid.waited {
            // Wakes the next waiter, who then watches the lock.
            steps.push(Op::Delete(names.place(owner)));
        }
        steps
    }

    /// Takes a place at the end of the queue. The answer says who was the last before us, and who
    /// holds the lock; what does not change with the length of the queue.
    async fn queue_up(&self, mut crossed: Crossed) -> Result<Result<Joined, Why>> {
        let (table, owner) = (&self.inner.table, self.claim.owner);
        for _ in 0..JOINS_MAX {
            let earlier = table.doubts(owner);
            let answer = self.inner.api.transact(&self.joining(crossed)).await?;
            table.knows(owner, earlier);
            match answer {
                Txn::Done(entries) => return self.joined(&entries, crossed).map(Ok),
                Txn::Refused(refusals) => match worst(&refusals) {
                    Why::Check => {
                        let changed = |op| refusals.iter().any(|refusal| refusal.op == op);
                        crossed.queue ^= changed(1);
                        crossed.lock &= !changed(2);
                    }
                    why => return Ok(Err(why)),
                },
            }
        }
        let message = "others come and go too fast to join the queue";
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// A read of a key that is not there refuses the whole: only what was seen is read.
    fn joining(&self, crossed: Crossed) -> Vec<Op> {
        let (names, owner) = (&self.names, self.claim.owner);
        let mut steps = vec![Op::CheckAbsent(names.grave(owner))];
        steps.push(match crossed.queue {
            true => Op::Get(names.queue()),
            false => Op::CheckAbsent(names.queue()),
        });
        if crossed.lock {
            steps.push(Op::Get(names.lock()));
        }
        steps.push(Op::Lock {
            key: names.place(owner),
            session: self.record.session.id.clone(),
            flags: 0,
            value: self.card(),
        });
        steps.push(Op::Set(names.queue(), owner.to_string()));
        steps
    }

    fn joined(&self, entries: &[Entry], crossed: Crossed) -> Result<Joined> {
        let (names, owner) = (&self.names, self.claim.owner);
        let (lock, queue, place) = (names.lock(), names.queue(), names.place(owner));
        let find = |key: &str| entries.iter().find(|entry| entry.key == key);
        let created = find(&place).ok_or_else(incomplete)?.created;
        let (before, lock) = (find(&queue).filter(|_| crossed.queue), find(&lock).cloned());
        // Asked again after a lost answer, the place is older than this request.
        let new = entries.last().is_some_and(|queue| queue.modified == created);
        let last = before.and_then(|queue| queue.value.parse().ok());
        let front = match (before, last) {
            _ if !new => Front::Unknown,
            (None, _) => Front::Head { index: lock.as_ref().map_or(0, |lock| lock.modified) },
            // Whoever marked the queue took its place in the same moment.
            (Some(queue), Some(last)) => {
                Front::Behind { place: names.place(last), owner: last, index: queue.modified }
            }
            (Some(_), None) => Front::Unknown,
        };
        let ahead = (new && before.is_none()).then_some(0);
        self.inner.table.queued(owner, created, ahead, front);
        Ok(Joined { created, lock, behind: before.is_some() || !new })
    }

    async fn view(&self) -> Result<View> {
        let entries = self.inner.api.read_tree(self.names.tree()).await?;
        Ok(View::new(&self.claim.key, entries))
    }

    /// Consul keeps the lock after a session ended that held it, and does not say for how long.
    fn delayed(&self, bid: Bid) -> Step {
        let mut busy = Busy::new(self.claim.key.clone());
        let note = Note::new("consul", "", 0, "nobody, but the lock-delay of an ended session");
        busy.holder = Some(Box::new(Holder::new(&note)));
        busy.retry_after = Some(DELAYED);
        if bid.waited {
            self.inner.table.change_place(self.claim.owner, |place| place.delayed = true);
        }
        Step::Answer(Attempt::Busy(busy))
    }

    fn granted(&self, entry: &Entry) -> Result<Grant> {
        let odd = || Error::new(ErrorKind::Internal, "consul gave an index that is no token");
        let token = view::token(entry).ok_or_else(odd)?;
        self.inner.table.granted(self.claim.owner, token);
        let lease = self.record.session.lease_from(self.asked);
        Ok(Grant::new(token, lease.min(self.claim.ttl)))
    }

    fn card(&self) -> String {
        let card = Card {
            owner: self.claim.owner,
            ttl: self.record.session.ttl,
            lock_delay: self.inner.lock_delay,
            note: self.claim.note.clone(),
        };
        card.encode()
    }
}

/// Of several reasons the one that decides: without a session nothing else matters.
fn worst(refusals: &[super::api::Refusal]) -> Why {
    let has = |why| refusals.iter().any(|refusal| refusal.why == why);
    match () {
        () if has(Why::Session) => Why::Session,
        () if has(Why::Check) => Why::Check,
        () if has(Why::LockDelay) => Why::LockDelay,
        () => Why::Check,
    }
}

fn incomplete() -> Error {
    Error::new(ErrorKind::Unavailable, "consul left out a part of its answer")
}

/// How often one ask begins anew because its session is gone.
const SESSIONS_MAX: usize = 3;
/// How often one ask tries to join a queue that is being made or swept away.
const JOINS_MAX: usize = 4;
/// How often one ask tries to take a lock that others are quicker to take.
const BIDS_MAX: usize = 3;
