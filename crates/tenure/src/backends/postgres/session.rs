//! `mode=session`: advisory locks, all on one connection, asked for by one task.
//!
//! The server counts how often a session takes a lock, so a second claim of this client would get
//! it too. The task therefore keeps its own book, exact because nobody else uses the connection and
//! because it does one thing after the other. When the connection ends, every lock on it has ended.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::types::Type;

use super::board::{self, UNLOCK_AND_CLEAR, live};
use super::fault;
use super::lanes::Lanes;
use super::lease::{get, note, span, token};
use super::limits::{Limits, set_limits};
use super::link::{Link, Sql, values};
use super::pooler;
use super::settings;
use super::settings::Kind;
use crate::claim::{Claim, LostReason, Owner};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// The task's desk. When the last one is dropped, the connection is closed.
pub(super) struct Session {
    desk: mpsc::UnboundedSender<Wish>,
    /// The owners of what is held now.
    held: Arc<Mutex<HashSet<Owner>>>,
}

enum Wish {
    Take(Claim, oneshot::Sender<Result<Option<FencingToken>>>),
    Renew(Vec<Claim>, oneshot::Sender<Vec<Result<Duration>>>),
    Release(Claim, oneshot::Sender<Result<bool>>),
}

impl Session {
    pub(super) fn start(lanes: &Arc<Lanes>, link: Arc<Link>) -> Session {
        let (desk, wishes) = mpsc::unbounded_channel();
        let held: Arc<Mutex<HashSet<Owner>>> = Arc::default();
        let book = Book {
            lanes: lanes.clone(),
            link: Some(link),
            limits: Limits::NONE,
            locks: HashMap::new(),
            casualties: HashSet::new(),
            held: held.clone(),
        };
        drop(tokio::spawn(book.run(wishes, lanes.bells.evictions())));
        Session { desk, held }
    }

    /// The token, if the lock is free and nobody is in front.
    pub(super) async fn try_take(&self, claim: &Claim) -> Result<Option<FencingToken>> {
        self.ask(|reply| Wish::Take(claim.clone(), reply)).await?
    }

    pub(super) async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        match self.ask(|reply| Wish::Renew(claims.to_vec(), reply)).await {
            Ok(answers) => answers,
            Err(error) => vec![Err(error); claims.len()],
        }
    }

    pub(super) async fn release(&self, claim: &Claim) -> Result<bool> {
        self.ask(|reply| Wish::Release(claim.clone(), reply)).await?
    }

    pub(super) fn holds(&self, owner: Owner) -> bool {
        owners(&self.held).contains(&owner)
    }

    async fn ask<T>(&self, wish: impl FnOnce(oneshot::Sender<T>) -> Wish) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        // The task ends only with its runtime.
        drop(self.desk.send(wish(sender)));
        receiver.await.map_err(|_| fault::closed())
    }
}

/// What the task knows.
struct Book {
    lanes: Arc<Lanes>,
    link: Option<Arc<Link>>,
    limits: Limits,
    /// By the number of the advisory lock: two names with the same number exclude each other.
    locks: HashMap<i64, Lock>,
    /// The owners that lost their locks with the last connection.
    casualties: HashSet<Owner>,
    held: Arc<Mutex<HashSet<Owner>>>,
}

struct Lock {
    key: Key,
    owner: Owner,
    token: FencingToken,
}

impl Lock {
    /// Whether a renewal is about this grant, and not an earlier one of the same owner.
    fn is_grant(&self, claim: &Claim) -> bool {
        self.owner == claim.owner && claim.token.is_none_or(|token| token == self.token)
    }
}

impl Book {
    async fn run(
        mut self,
        mut wishes: mpsc::UnboundedReceiver<Wish>,
        mut evictions: mpsc::UnboundedReceiver<Owner>,
    ) {
        loop {
            let link = self.link.clone();
            let closed = async {
                match &link {
                    Some(link) => link.until_closed().await,
                    None => std::future::pending().await,
                }
            };
            let wish = tokio::select! {
                biased;
                () = closed => {
                    self.lose_all();
                    continue;
                }
                Some(owner) = evictions.recv() => {
                    self.let_go(owner).await;
                    continue;
                }
                wish = wishes.recv() => wish,
            };
            // Whoever asked may have gone away; the book stays exact all the same.
            match wish {
                None => return,
                Some(Wish::Take(claim, reply)) => drop(reply.send(self.take(&claim).await)),
                Some(Wish::Renew(claims, reply)) => drop(reply.send(self.renew(&claims).await)),
                Some(Wish::Release(claim, reply)) => drop(reply.send(self.release(&claim).await)),
            }
        }
    }

    async fn take(&mut self, claim: &Claim) -> Result<Option<FencingToken>> {
        let number = number(&claim.key);
        let link = self.connected().await?;
        match self.locks.get(&number) {
            Some(lock) if lock.owner == claim.owner && lock.key == claim.key => {
                let token = lock.token;
                // The lease counts from this request on, and the server ends a session that is
                // silent for longer than a lease: it has to hear this one.
                self.prove(&link).await?;
                return Ok(Some(token));
            }
            // Ours already, by another claim: the server would count, not refuse.
            Some(_) => return Ok(None),
            None => {}
        }
        let limits = self.limits.with(claim.ttl);
        let values = values![
            number,
            claim.key.as_str().as_bytes().to_vec(),
            claim.owner.to_string(),
            span(claim.ttl),
            note(&claim.note),
            self.lanes.channel.clone(),
            limits.idle(link.version),
            limits.wait(),
        ];
        let taken = link.ask_once(&TAKE, values).await.and_then(|rows| {
            let row = rows.first().ok_or_else(|| fault::odd("a lock"))?;
            let number: Option<i64> = get(row, 0)?;
            number.map_or(Ok(None), token)
        });
        match taken {
            Ok(Some(token)) => {
                self.limits = limits;
                let lock = Lock { key: claim.key.clone(), owner: claim.owner, token };
                self.locks.insert(number, lock);
                owners(&self.held).insert(claim.owner);
                Ok(Some(token))
            }
            Ok(None) => Ok(None),
            Err(error) => {
                // The lock may be held although the statement failed, and nobody would know.
                if link.ask(&UNLOCK, values![number]).await.is_err() {
                    self.lose_all();
                }
                Err(error)
            }
        }
    }

    async fn renew(&mut self, claims: &[Claim]) -> Vec<Result<Duration>> {
        if let Some(link) = self.link.clone()
            && !self.locks.is_empty()
        {
            match self.prove(&link).await {
                Err(error) if self.link.is_some() => return vec![Err(error); claims.len()],
                // What it means is in the book.
                Ok(()) | Err(_) => {}
            }
        }
        let answer = |claim: &Claim| match self.locks.get(&number(&claim.key)) {
            Some(lock) if lock.is_grant(claim) => Ok(claim.ttl),
            _ if self.casualties.contains(&claim.owner) => {
                Err(Error::gone(LostReason::SessionGone))
            }
            _ => Err(Error::new(ErrorKind::Lost, "the lock is not held")),
        };
        claims.iter().map(answer).collect()
    }

    /// Lets the server hear from us, and makes sure that the session is still ours. If it is gone,
    /// all locks are.
    async fn prove(&mut self, link: &Arc<Link>) -> Result<()> {
        match pooler::process(link).await {
            Ok(pid) if pid == link.pid => Ok(()),
            // The session was changed under us.
            Ok(_) => {
                self.lose_all();
                Err(settings::pooler(Kind::Session))
            }
            Err(error) => {
                if link.is_closed() {
                    self.lose_all();
                }
                Err(error)
            }
        }
    }

    async fn release(&mut self, claim: &Claim) -> Result<bool> {
        self.casualties.remove(&claim.owner);
        let number = number(&claim.key);
        if self.locks.get(&number).is_none_or(|lock| lock.owner != claim.owner) {
            return Ok(false);
        }
        self.unlock(number).await
    }

    /// Somebody evicted a claim of ours: the others on this connection go on.
    async fn let_go(&mut self, owner: Owner) {
        let found = self.locks.iter().find(|(_, lock)| lock.owner == owner);
        let Some(number) = found.map(|(number, _)| *number) else { return };
        // Where that fails, the connection is closed, and with it the lock.
        drop(self.unlock(number).await);
        self.lanes.bells.lose(owner);
    }

    /// Gives a lock back, takes it off the board and rings the next, in one trip.
    async fn unlock(&mut self, number: i64) -> Result<bool> {
        let (Some(link), Some(lock)) = (self.link.clone(), self.locks.get(&number)) else {
            return Ok(false);
        };
        let (key, owner) = (lock.key.clone(), lock.owner);
        let last = (self.locks.len() == 1).then_some(Limits::NONE);
        let bytes = key.as_str().as_bytes().to_vec();
        let values = values![
            Kind::Session.word(),
            bytes,
            owner.to_string(),
            number,
            last.and_then(|limits| limits.idle(link.version)),
            last.map(Limits::wait),
        ];
        let mut unlocked = link.ask_once(&UNLOCK_AND_CLEAR, values).await;
        match &unlocked {
            Ok(_) => self.limits = last.unwrap_or(self.limits),
            // The row on the board may be locked by another transaction. The lock itself need not
            // wait for it, and the others on this connection must not end for it.
            Err(error) if fault::is_response(error) => {
                unlocked = link.ask_once(&UNLOCK, values![number]).await;
                self.clear_later(key, owner);
            }
            Err(_) => {}
        }
        if let Err(error) = unlocked {
            // An unlock that was not confirmed: only the end of the session is sure.
            self.lose_all();
            return Err(error);
        }
        // The session is ours and had it: it was held until now.
        self.locks.remove(&number);
        owners(&self.held).remove(&owner);
        Ok(true)
    }

    /// Takes a claim off the board when that is possible. If it never is, the sweep does, and the
    /// first waiter polls.
    fn clear_later(&self, key: Key, owner: Owner) {
        let lanes = self.lanes.clone();
        drop(tokio::spawn(async move { board::clear(&lanes, &key, owner).await }));
    }

    /// The connection is gone, or has to go, and every lock with it.
    fn lose_all(&mut self) {
        if let Some(link) = self.link.take() {
            link.close();
        }
        self.limits = Limits::NONE;
        self.casualties = self.locks.drain().map(|(_, lock)| lock.owner).collect();
        owners(&self.held).clear();
        for owner in &self.casualties {
            self.lanes.bells.lose(*owner);
        }
    }

    async fn connected(&mut self) -> Result<Arc<Link>> {
        if let Some(link) = &self.link {
            if !link.is_closed() {
                return Ok(link.clone());
            }
            self.lose_all();
        }
        let link = Arc::new(self.lanes.open_apart().await?);
        if pooler::process(&link).await? != link.pid {
            return Err(settings::pooler(Kind::Session));
        }
        self.link = Some(link.clone());
        Ok(link)
    }
}

/// The advisory lock of a name: the first eight bytes of its SHA-256, little end first, as a signed
/// number. django-pglock makes it the same way.
pub(super) fn number(key: &Key) -> i64 {
    let digest = Sha256::digest(key.as_str().as_bytes());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest[..8]);
    i64::from_le_bytes(bytes)
}

fn owners(held: &Mutex<HashSet<Owner>>) -> MutexGuard<'_, HashSet<Owner>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the lock unless somebody waits in front, draws the token while it is held, and writes both
/// down. $1 number, $2 key, $3 owner, $4 ttl, $5 note, $6 channel; $7, $8 the limits of
/// the session if it gets the lock.
static TAKE: Sql = Sql {
    text: concat!(
        "WITH got AS MATERIALIZED (SELECT CASE
  WHEN EXISTS (SELECT 1 FROM @.tenure_board b WHERE b.mode = 'session' AND b.key = $2 AND $3 <>
    (SELECT e->>'o' FROM jsonb_array_elements(b.queue) WITH ORDINALITY x(e, i)
     WHERE (e->>'u')::timestamptz > clock_timestamp() ORDER BY i LIMIT 1)) THEN NULL
  WHEN pg_try_advisory_lock($1) THEN nextval('@.tenure_token') END AS token),
p AS (INSERT INTO @.tenure_board AS l (mode, key, owner, token, pid, number, ttl, note, chan)
  SELECT 'session', $2, $3, token, pg_backend_pid(), $1, $4, $5, $6 FROM got
  WHERE token IS NOT NULL
  ON CONFLICT (mode, key) DO UPDATE SET owner = excluded.owner, token = excluded.token,
    pid = excluded.pid, number = excluded.number, ttl = excluded.ttl, since = excluded.since,
    note = excluded.note, chan = excluded.chan, queue = ",
        live!(" AND e->>'o' <> excluded.owner"),
        "
  WHERE l.token < excluded.token)
SELECT token, NULL, NULL FROM got WHERE token IS NULL
UNION ALL SELECT token, ",
        set_limits!("$7", "$8"),
        " FROM got WHERE token IS NOT NULL"
    ),
    types: &[
        Type::INT8,
        Type::BYTEA,
        Type::TEXT,
        Type::FLOAT8,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
    ],
};

static UNLOCK: Sql = Sql { text: "SELECT pg_advisory_unlock($1)", types: &[Type::INT8] };

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with Python: `int.from_bytes(sha256(name).digest()[:8], 'little', signed=True)`.
    #[test]
    fn a_name_has_the_number_that_django_pglock_gives_it() {
        assert_eq!(number(&Key::new("my-lock").unwrap()), MY_LOCK);
    }

    const MY_LOCK: i64 = 6_170_642_704_201_584_368;
}
