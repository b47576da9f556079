//! Giving back: what was held, what waited, and what nobody knows about.

use std::sync::Arc;

use super::Inner;
use super::api::{Entry, Op, Txn, Why};
use super::names::{Card, Names};
use super::session::Session;
use super::table::Record;
use super::view::{self, View};
use crate::backend::Owner;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::token::FencingToken;

impl Inner {
    /// Leaves nothing of the claim at the server. `true` if it was held.
    pub(super) async fn leave(&self, owner: Owner, doubtful: bool) -> Result<bool> {
        let Some(record) = self.table.leaving(owner) else { return Ok(false) };
        let names = Names::new(&record.key);
        let held = match (record.doubt || doubtful, record.token) {
            // Everything that hung on the session went with it.
            _ if record.session.is_gone() => false,
            (true, _) => self.bury(owner, &record, &names).await?,
            (false, Some(token)) => self.give_back(owner, &record, &names, token).await?,
            (false, None) => self.withdraw(owner, &record, &names).await?,
        };
        if let Some(session) = self.table.forget(owner) {
            // If it does not arrive, nobody renews the session, and it ends by itself.
            let _late = self.api.destroy_session(&session.id).await;
        }
        Ok(held)
    }

    /// Gives back what is left of claims whose release was never answered. Others may renew their
    /// session, so it would not end by itself.
    pub(super) async fn pay_debts(&self, session: &Arc<Session>) {
        for owner in self.table.debts(session) {
            // What fails now is tried again with the next renewal.
            let _unpaid = self.leave(owner, true).await;
        }
    }

    /// Force-releases exactly the grant with this token.
    pub(super) async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        let lock = Names::new(key).lock();
        let steps = [Op::CheckIndex(lock.clone(), token.get()), Op::Delete(lock)];
        Ok(matches!(self.api.transact(&steps).await?, Txn::Done(_)))
    }

    async fn give_back(
        &self,
        owner: Owner,
        record: &Record,
        names: &Names,
        token: FencingToken,
    ) -> Result<bool> {
        let (lock, mut index, mut asks_queue) = (names.lock(), token.get(), record.queued);
        for _ in 0..3 {
            let mut steps = vec![Op::CheckIndex(lock.clone(), index), Op::Delete(lock.clone())];
            if asks_queue {
                steps.push(Op::Get(names.queue()));
            }
            let refusals = match self.api.transact(&steps).await? {
                Txn::Done(answers) => {
                    self.sweep_if_last(owner, record, names, &answers).await;
                    return Ok(true);
                }
                Txn::Refused(refusals) => refusals,
            };
            if refusals.iter().any(|refusal| refusal.op == 0) {
                // Gone, or a stranger wrote into the key, which leaves the lock with its holder.
                match self.api.read(&lock).await? {
                    Some(entry) if self.is_ours(&entry, owner, record) => index = entry.modified,
                    _ => return Ok(false),
                }
            }
            asks_queue = false;
        }
        Err(Error::new(ErrorKind::Unavailable, "somebody keeps writing into the lock's key"))
    }

    async fn withdraw(&self, owner: Owner, record: &Record, names: &Names) -> Result<bool> {
        if record.place.is_none() {
            return Ok(false);
        }
        let place = names.place(owner);
        let steps = [Op::Delete(place.clone()), Op::Get(names.queue())];
        match self.api.transact(&steps).await? {
            Txn::Done(answers) => self.sweep_if_last(owner, record, names, &answers).await,
            // No queue is marked; then only the place has to go.
            Txn::Refused(_) => drop(self.api.transact(&[Op::Delete(place)]).await?),
        }
        Ok(false)
    }

    /// Ends a claim of which a request is unanswered. A mark stays that refuses the request if it
    /// arrives after this; it goes with the session, which takes no new claims from now on.
    async fn bury(&self, owner: Owner, record: &Record, names: &Names) -> Result<bool> {
        record.session.retire();
        let steps = [
            Op::Lock {
                key: names.grave(owner),
                session: record.session.id.clone(),
                flags: 0,
                value: String::new(),
            },
            Op::Delete(names.place(owner)),
            Op::Tree(names.tree()),
        ];
        let entries = match self.api.transact(&steps).await? {
            Txn::Done(entries) => entries,
            Txn::Refused(refusals) if refusals.iter().any(|r| r.why == Why::Session) => {
                record.session.lose();
                return Ok(false);
            }
            Txn::Refused(_) => {
                let message = "consul refused to mark a claim as withdrawn";
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
        };
        let view = View::new(&record.key, entries);
        let held = match view.lock.as_ref().filter(|lock| self.is_ours(lock, owner, record)) {
            Some(lock) => {
                let index = Op::CheckIndex(lock.key.clone(), lock.modified);
                let steps = [index, Op::Delete(lock.key.clone())];
                matches!(self.api.transact(&steps).await?, Txn::Done(_))
            }
            None => false,
        };
        if view.queue.is_some_and(|queue| queue.value == owner.to_string()) {
            self.sweep(&record.key, names).await;
        }
        Ok(held)
    }

    /// Whether the lock is this claim's, also if a stranger has overwritten the value.
    pub(super) fn is_ours(&self, entry: &Entry, owner: Owner, record: &Record) -> bool {
        if view::is_held_by(entry, owner, record) {
            return true;
        }
        let ours = entry.session.as_deref() == Some(record.session.id.as_str());
        let overwritten = Card::decode(&entry.value).is_none() && record.token.is_some();
        ours && overwritten && !self.table.other_holder(owner, &record.key)
    }

    /// Whoever came last to a queue takes its mark away.
    async fn sweep_if_last(&self, owner: Owner, record: &Record, names: &Names, seen: &[Entry]) {
        let (queue, owner) = (names.queue(), owner.to_string());
        match seen.iter().find(|entry| entry.key == queue) {
            Some(entry) if entry.value == owner => self.sweep(&record.key, names).await,
            Some(_) => self.table.crowd(&record.key),
            None => {}
        }
    }

    /// Takes the mark of a queue away if nobody waits, else leaves that to the last one. What fails
    /// here costs the next who takes this lock a request, nothing else.
    async fn sweep(&self, key: &Key, names: &Names) {
        let Ok(entries) = self.api.read_tree(names.tree()).await else { return };
        let view = View::new(key, entries);
        let Some(queue) = view.queue else { return };
        let check = Op::CheckIndex(queue.key.clone(), queue.modified);
        let change = match view.places.last() {
            None => Op::Delete(queue.key),
            Some((last, _)) => Op::Set(queue.key, last.to_string()),
        };
        let _unswept = self.api.transact(&[check, change]).await;
    }
}
