//! `mode=row`: a row lock of an open transaction, one connection per held lock.
//!
//! The row has to be there, committed, before it can be locked: an insert that is not committed
//! would make every other taker wait in its own insert.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::board;
use super::fault;
use super::lanes::Lanes;
use super::link::Link;
use crate::claim::{Claim, LostReason, Owner};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// The row locks of a client.
pub(super) struct Rows {
    lanes: Arc<Lanes>,
    slots: Mutex<HashMap<Owner, Slot>>,
    /// Connections without a transaction, ready for the next lock.
    idle: Mutex<Vec<Arc<Link>>>,
    room: Arc<Semaphore>,
    /// Held while a connection is opened in advance.
    advance: tokio::sync::Mutex<()>,
}

/// What is known of a claim.
enum Slot {
    /// A request is under way.
    Asking,
    /// It was withdrawn: what is granted has to be undone, or is just being ended.
    Withdrawn,
    Held(Held),
}

#[derive(Clone)]
struct Held {
    key: Key,
    token: FencingToken,
    link: Arc<Link>,
    _room: Arc<OwnedSemaphorePermit>,
}

impl Held {
    /// What the transaction calls itself for as long as it lasts.
    fn name(&self) -> String {
        format!("tenure row {}", self.token)
    }
}

impl Rows {
    pub(super) fn start(lanes: &Arc<Lanes>, idle: Vec<Arc<Link>>) -> Arc<Rows> {
        let rows = Arc::new(Rows {
            lanes: lanes.clone(),
            slots: Mutex::default(),
            idle: Mutex::new(idle),
            room: Arc::new(Semaphore::new(lanes.settings.rows)),
            advance: tokio::sync::Mutex::new(()),
        });
        let (weak, mut evictions) = (Arc::downgrade(&rows), lanes.bells.evictions());
        drop(tokio::spawn(async move {
            while let Some(owner) = evictions.recv().await {
                let Some(rows) = weak.upgrade() else { return };
                rows.let_go(owner).await;
            }
        }));
        rows
    }

    /// The token, if the row is free and nobody is in front.
    pub(super) async fn try_take(self: &Arc<Self>, claim: &Claim) -> Result<Option<FencingToken>> {
        let held = match self.slots().get(&claim.owner) {
            Some(Slot::Held(held)) if !held.link.is_closed() => Some(held.token),
            Some(Slot::Asking | Slot::Withdrawn) => return Err(under_way()),
            Some(Slot::Held(_)) | None => None,
        };
        if let Some(token) = held {
            // The lease counts from this request on, and the server ends a session that is silent
            // for longer than a lease: it has to hear this one.
            return match self.renew_one(claim).await {
                Ok(_) => Ok(Some(token)),
                Err(error) if error.kind() == ErrorKind::Unavailable => Err(error),
                Err(_) => Err(ended()),
            };
        }
        self.slots().insert(claim.owner, Slot::Asking);
        let (rows, claim) = (self.clone(), claim.clone());
        // In a task: a request that nobody waits for any more must not leave a lock behind.
        let task = tokio::spawn(async move {
            let taken = rows.take(&claim).await;
            rows.settle(&claim, taken).await
        });
        task.await.unwrap_or_else(|_| Err(fault::closed()))
    }

    async fn take(self: &Arc<Self>, claim: &Claim) -> Result<Option<Held>> {
        let Ok(room) = self.room.clone().try_acquire_owned() else { return Err(self.full()) };
        let link = self.link().await?;
        let Some(token) = lock(&link, claim).await? else {
            // Nobody has to wait until the connection is fit for the next claim.
            let (rows, room) = (self.clone(), room);
            drop(tokio::spawn(async move {
                let _room = room;
                match link.batch("ROLLBACK".to_owned()).await {
                    Ok(_) => rows.idle().push(link),
                    Err(_) => link.close(),
                }
            }));
            return Ok(None);
        };
        let (key, room) = (claim.key.clone(), Arc::new(room));
        // Written down before it is told: the board is what people and evictions go by.
        if let Err(error) = board::post(&self.lanes, claim, token, link.pid).await {
            link.close();
            return Err(error);
        }
        Ok(Some(Held { key, token, link, _room: room }))
    }

    /// Takes down the answer, or undoes it if the claim was withdrawn. Until that is done, the slot
    /// says so.
    async fn settle(
        &self,
        claim: &Claim,
        taken: Result<Option<Held>>,
    ) -> Result<Option<FencingToken>> {
        let undo = {
            let mut slots = self.slots();
            let withdrawn = matches!(slots.get(&claim.owner), Some(Slot::Withdrawn));
            match taken {
                Ok(Some(held)) if withdrawn => held,
                Ok(Some(held)) => {
                    let token = held.token;
                    slots.insert(claim.owner, Slot::Held(held));
                    return Ok(Some(token));
                }
                nothing => {
                    slots.remove(&claim.owner);
                    return nothing.map(|_| None);
                }
            }
        };
        self.finish(undo, claim.owner).await?;
        Ok(None)
    }

    /// Ends a grant whose slot says that it is withdrawn, and then forgets it.
    async fn finish(&self, held: Held, owner: Owner) -> Result<bool> {
        let ended = self.end(held, owner).await;
        self.slots().remove(&owner);
        ended
    }

    pub(super) async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        join_all(claims.iter().map(|claim| self.renew_one(claim))).await
    }

    /// Each claim has a connection of its own: one that is silent makes no other wait for longer
    /// than this.
    async fn renew_one(&self, claim: &Claim) -> Result<Duration> {
        match tokio::time::timeout(claim.ttl / 8, self.prove(claim)).await {
            Ok(proven) => proven.map(|()| claim.ttl),
            Err(_) => Err(silent()),
        }
    }

    /// Lets the server hear from us, and makes sure that the transaction which took the lock is
    /// still open: its name goes with it. An error response is proof of the opposite, also where
    /// the connection lives on: it aborts the transaction, and an aborted one has given its row
    /// locks back already.
    async fn prove(&self, claim: &Claim) -> Result<()> {
        let held = match self.slots().get(&claim.owner) {
            Some(Slot::Held(held)) if claim.token.is_none_or(|token| token == held.token) => {
                held.clone()
            }
            _ => return Err(Error::new(ErrorKind::Lost, "the lock is not held")),
        };
        match held.link.batch(NAME.to_owned()).await {
            Ok(name) if name == Some(held.name()) => Ok(()),
            Err(error) if !held.link.is_closed() && !fault::is_response(&error) => Err(error),
            Ok(_) | Err(_) => {
                held.link.close();
                self.forget(claim.owner, held.token);
                Err(Error::gone(LostReason::SessionGone))
            }
        }
    }

    /// Takes a grant off the book, unless the same owner has another one by now.
    fn forget(&self, owner: Owner, token: FencingToken) {
        let mut slots = self.slots();
        if matches!(slots.get(&owner), Some(Slot::Held(held)) if held.token == token) {
            slots.remove(&owner);
        }
    }

    /// A claim whose request or release is still under way has left a trace, or may: that is no
    /// answer yet, and the release has to be repeated.
    pub(super) async fn release(self: &Arc<Self>, claim: &Claim) -> Result<bool> {
        let held = {
            let mut slots = self.slots();
            match slots.remove(&claim.owner) {
                None => return Ok(false),
                Some(slot) => {
                    slots.insert(claim.owner, Slot::Withdrawn);
                    match slot {
                        Slot::Held(held) => held,
                        Slot::Asking | Slot::Withdrawn => return Err(under_way()),
                    }
                }
            }
        };
        let rows = self.clone();
        let owner = claim.owner;
        let task = tokio::spawn(async move { rows.finish(held, owner).await });
        task.await.unwrap_or_else(|_| Err(fault::closed()))
    }

    /// Ends the transaction, takes the claim off the board and rings the next, in one message;
    /// `true` if the lock was held until then. If that is not confirmed, the connection is closed:
    /// it is never used again while it may hold a lock.
    async fn end(&self, held: Held, owner: Owner) -> Result<bool> {
        if held.link.is_closed() {
            return Ok(false);
        }
        let text = format!("{NAME}; ROLLBACK; {}", board::clear_text(&held.key, owner));
        match held.link.batch(text).await {
            Ok(name) => {
                let was_held = name == Some(held.name());
                self.idle().push(held.link);
                Ok(was_held)
            }
            Err(error) => {
                held.link.close();
                // The transaction was aborted before: the lock is gone since then.
                if fault::is_aborted(&error) { Ok(false) } else { Err(error) }
            }
        }
    }

    /// Somebody evicted a claim of ours.
    async fn let_go(&self, owner: Owner) {
        let slot = self.slots().remove(&owner);
        match slot {
            Some(Slot::Held(held)) => {
                // Where that fails, the connection is closed, and with it the lock.
                drop(self.end(held, owner).await);
                self.lanes.bells.lose(owner);
            }
            Some(other) => drop(self.slots().insert(owner, other)),
            None => {}
        }
    }

    /// Returns when the claim's connection has ended; at once if it has none.
    pub(super) async fn until_closed(&self, owner: Owner) {
        let link = match self.slots().get(&owner) {
            Some(Slot::Held(held)) => held.link.clone(),
            _ => return,
        };
        link.until_closed().await;
    }

    pub(super) fn holds(&self, owner: Owner) -> bool {
        matches!(self.slots().get(&owner), Some(Slot::Held(_)))
    }

    /// A connection for the next lock. Another is opened in advance, because that takes longer than
    /// a claim with a short lease may wait for its answer.
    async fn link(self: &Arc<Self>) -> Result<Arc<Link>> {
        let found = {
            let mut idle = self.idle();
            idle.retain(|link| !link.is_closed());
            let found = idle.pop();
            if idle.is_empty() && self.room.available_permits() > 0 {
                drop(tokio::spawn(self.clone().open_in_advance()));
            }
            found
        };
        match found {
            Some(link) => Ok(link),
            None => Ok(Arc::new(self.lanes.open_apart().await?)),
        }
    }

    async fn open_in_advance(self: Arc<Self>) {
        // One at a time, and only while nobody gave one back.
        let Ok(_alone) = self.advance.try_lock() else { return };
        if let Ok(link) = self.lanes.open_apart().await
            && self.idle().is_empty()
        {
            self.idle().push(Arc::new(link));
        }
    }

    fn full(&self) -> Error {
        let most = self.lanes.settings.rows;
        let message = format!(
            "{most} row locks are held or asked for, each by a connection of its own; raise \
             `rows`, or use `mode=lease`"
        );
        Error::new(ErrorKind::Unavailable, message)
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<Owner, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Arc<Link>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the row if need be, begins a transaction and locks the row in it, in one message: what
/// came between could run outside. The transaction has the token in its name, and ends if its
/// holder hangs: a little after the lease, which the holder knows to be over by then. A failure
/// closes the connection.
async fn lock(link: &Arc<Link>, claim: &Claim) -> Result<Option<FencingToken>> {
    let key = board::hex(&claim.key);
    let (owner, limit) = (claim.owner, (claim.ttl + claim.ttl / 4).as_millis());
    let forever = if link.version >= TRANSACTION_TIMEOUT {
        "SET LOCAL transaction_timeout = 0; "
    } else {
        ""
    };
    let text = format!(
        "INSERT INTO @.tenure_row (key) VALUES ({key}) ON CONFLICT DO NOTHING; COMMIT; \
BEGIN; SET LOCAL idle_in_transaction_session_timeout = {limit}; {forever}\
WITH r AS (SELECT key FROM @.tenure_row WHERE key = {key} AND NOT EXISTS (
    SELECT 1 FROM @.tenure_board b WHERE b.mode = 'row' AND b.key = {key} AND '{owner}' <>
    (SELECT e->>'o' FROM jsonb_array_elements(b.queue) WITH ORDINALITY x(e, i)
     WHERE (e->>'u')::timestamptz > clock_timestamp() ORDER BY i LIMIT 1))
  FOR UPDATE SKIP LOCKED),
t AS MATERIALIZED (SELECT nextval('@.tenure_token') AS token FROM r)
SELECT token, set_config('application_name', 'tenure row ' || token, true) FROM t"
    );
    let taken = match link.batch(text).await {
        Ok(taken) => taken,
        Err(error) => {
            link.close();
            return Err(error);
        }
    };
    taken.map(|token| token.parse().map_err(|_| fault::odd("a token"))).transpose()
}

fn ended() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection of this lock has ended; ask again")
}

fn silent() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection of this lock gives no response")
}

fn under_way() -> Error {
    Error::new(ErrorKind::Unavailable, "an earlier request of this claim is still under way")
}

/// Asks a transaction for its name.
const NAME: &str = "SELECT current_setting('application_name')";
/// The first version with `transaction_timeout`.
const TRANSACTION_TIMEOUT: i32 = 170_000;
