//! Renewing: one request for a session and all that hangs on it, one more for every 64 locks to see
//! that they still do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Inner;
use super::api::{Entry, Op, Txn};
use super::names::Names;
use super::session::Session;
use super::table::Record;
use crate::backend::Claim;
use crate::claim::LostReason;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

impl Inner {
    pub(super) async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        let asked = Clock::Boot.now();
        let records: Vec<_> = claims.iter().map(|claim| self.table.get(claim.owner)).collect();
        let sessions = sessions(records.iter().flatten());
        let renewals = join_all(sessions.values().map(|session| self.refresh(session)));
        let checks = self.check_all(claims, &records);
        let (renewals, checks) = futures_util::future::join(renewals, checks).await;
        let renewals: HashMap<&str, Result<bool>> =
            sessions.keys().map(String::as_str).zip(renewals).collect();
        let mut answers = Vec::with_capacity(claims.len());
        for ((claim, record), check) in claims.iter().zip(&records).zip(checks) {
            let answer = match (record, check) {
                (None, _) => Err(not_held()),
                (Some(record), check) => match renewals.get(record.session.id.as_str()) {
                    Some(Ok(false)) => Err(Error::gone(LostReason::SessionGone)),
                    Some(Err(error)) => Err(error.clone()),
                    Some(Ok(true)) | None => check.map(|()| record.session.lease_from(asked)),
                },
            };
            if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost) {
                self.table.lose_grant(claim.owner);
            }
            answers.push(answer);
        }
        answers
    }

    async fn refresh(&self, session: &Arc<Session>) -> Result<bool> {
        // Several calls at the same time need one renewal between them.
        let alive = session.refresh(&self.api, session.ttl / 10).await?;
        if alive {
            self.pay_debts(session).await;
        }
        Ok(alive)
    }

    /// Whether each claim still holds its lock.
    async fn check_all(&self, claims: &[Claim], records: &[Option<Record>]) -> Vec<Result<()>> {
        let pairs: Vec<_> = claims.iter().zip(records).collect();
        let chunks = pairs.chunks(STEPS_MAX).map(|chunk| self.check(chunk));
        join_all(chunks).await.into_iter().flatten().collect()
    }

    async fn check(&self, chunk: &[(&Claim, &Option<Record>)]) -> Vec<Result<()>> {
        let mut steps = Vec::new();
        let mut asked = Vec::new();
        for (at, (claim, record)) in chunk.iter().enumerate() {
            let token = record.as_ref().and_then(|record| record.token);
            // A renewal of another grant of the same owner is none.
            let named = |token: &FencingToken| claim.token.is_none_or(|named| named == *token);
            if let Some(token) = token.filter(named) {
                steps.push(Op::CheckIndex(Names::new(&claim.key).lock(), token.get()));
                asked.push(at);
            }
        }
        let mut answers: Vec<Result<()>> = chunk.iter().map(|_| Err(not_held())).collect();
        if steps.is_empty() {
            return answers;
        }
        let refused = match self.api.transact(&steps).await {
            Ok(Txn::Done(_)) => Vec::new(),
            Ok(Txn::Refused(refusals)) => refusals.iter().map(|refusal| refusal.op).collect(),
            Err(error) => return chunk.iter().map(|_| Err(error.clone())).collect(),
        };
        for (step, at) in asked.into_iter().enumerate() {
            let (claim, record) = chunk[at];
            answers[at] = match (refused.contains(&step), record) {
                (true, Some(record)) => self.look(claim, record).await,
                _ => Ok(()),
            };
        }
        answers
    }

    /// The key is not as we wrote it: gone, somebody else's, or written into by a stranger.
    async fn look(&self, claim: &Claim, record: &Record) -> Result<()> {
        // A stranger's write leaves the key; one that was deleted and made anew is another grant,
        // as by a late request of a claim that was evicted.
        let same = |entry: &Entry| record.token.is_some_and(|token| entry.created <= token.get());
        match self.api.read(&Names::new(&claim.key).lock()).await? {
            Some(entry) if same(&entry) && self.is_ours(&entry, claim.owner, record) => Ok(()),
            _ if !record.session.refresh(&self.api, Duration::ZERO).await? => {
                Err(Error::gone(LostReason::SessionGone))
            }
            Some(entry) if entry.session.is_some() => Err(Error::gone(LostReason::TakenOver)),
            _ => Err(Error::gone(LostReason::Evicted)),
        }
    }
}

fn sessions<'a>(records: impl Iterator<Item = &'a Record>) -> HashMap<String, Arc<Session>> {
    records.map(|record| (record.session.id.clone(), record.session.clone())).collect()
}

fn not_held() -> Error {
    Error::new(ErrorKind::Lost, "the lock is not held")
}

/// Consul takes no more steps in one transaction.
const STEPS_MAX: usize = 64;
