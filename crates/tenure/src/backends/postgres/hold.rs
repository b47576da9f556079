//! What `mode=session` and `mode=row` have in common: the lock hangs on a connection, and the board
//! says who holds it and who waits.

use std::sync::Arc;
use std::time::Duration;

use super::board;
use super::lanes::Lanes;
use super::lease::{holding, range};
use super::link::values;
use super::row::Rows;
use super::session::Session;
use super::sql;
use crate::backend::Scope;
use crate::claim::{Attempt, Claim, Grant, Holding, Owner};
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

/// The connections that hold locks.
pub(super) enum Hold {
    Session(Session),
    Rows(Arc<Rows>),
}

impl Hold {
    async fn try_take(&self, claim: &Claim) -> Result<Option<FencingToken>> {
        match self {
            Hold::Session(session) => session.try_take(claim).await,
            Hold::Rows(rows) => rows.try_take(claim).await,
        }
    }

    pub(super) async fn try_acquire(
        &self,
        lanes: &Arc<Lanes>,
        claim: &Claim,
    ) -> Result<Attempt<Grant>> {
        if claim.waits {
            lanes.bells.expect(claim.owner);
            // Whoever waits has to be heard, and has to hear.
            lanes.pick().await?;
        }
        let mut taken = self.try_take(claim).await?;
        if taken.is_none() {
            let busy = board::busy(lanes, claim).await?;
            // The lock may have become free before our place was there to be rung.
            if claim.waits && busy.ahead == Some(0) {
                taken = self.try_take(claim).await?;
            }
            if taken.is_none() {
                return Ok(Attempt::Busy(busy));
            }
        }
        lanes.bells.forget(claim.owner);
        let grant = taken.map(|token| Grant::new(token, claim.ttl));
        grant.map(Attempt::Granted).ok_or_else(|| super::fault::odd("a lock"))
    }

    pub(super) async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        match self {
            Hold::Session(session) => session.renew(claims).await,
            Hold::Rows(rows) => rows.renew(claims).await,
        }
    }

    pub(super) async fn release(&self, lanes: &Arc<Lanes>, claim: &Claim) -> Result<bool> {
        lanes.bells.forget(claim.owner);
        let held = match self {
            Hold::Session(session) => session.release(claim).await?,
            Hold::Rows(rows) => rows.release(claim).await?,
        };
        if held {
            return Ok(true);
        }
        // It may have waited.
        board::clear(lanes, &claim.key, claim.owner).await?;
        Ok(held)
    }

    fn holds(&self, owner: Owner) -> bool {
        match self {
            Hold::Session(session) => session.holds(owner),
            Hold::Rows(rows) => rows.holds(owner),
        }
    }

    pub(super) async fn until_lost(&self, lanes: &Lanes, claim: &Claim) {
        let lost = lanes.bells.until_lost(claim.owner, || self.holds(claim.owner));
        match self {
            Hold::Session(_) => lost.await,
            Hold::Rows(rows) => tokio::select! {
                () = lost => {}
                () = rows.until_closed(claim.owner) => {}
            },
        }
    }

    /// Asks the holder's client to let go, so that its other locks live on. If it does not, its
    /// connection is ended.
    pub(super) async fn evict(
        &self,
        lanes: &Arc<Lanes>,
        key: &Key,
        token: FencingToken,
    ) -> Result<bool> {
        let Some(found) = board::find(lanes, key, token).await? else { return Ok(false) };
        let message = format!("lost {}", found.owner);
        lanes.ask(&sql::NOTIFY, values![found.channel, message]).await?;
        for round in 0..LOOKS {
            tokio::time::sleep(LOOK).await;
            if board::find(lanes, key, token).await?.is_none() {
                board::clear(lanes, key, found.owner).await?;
                return Ok(true);
            }
            if round >= PATIENCE {
                board::terminate(lanes, key, token).await?;
            }
        }
        Err(super::fault::stubborn(key))
    }
}

pub(super) async fn list(lanes: &Arc<Lanes>, scope: Scope<'_>) -> Result<Vec<Holding>> {
    let (from, to) = match scope {
        // The next key there could be.
        Scope::Key(key) => {
            let from = key.as_str().as_bytes().to_vec();
            let to = [&from[..], &[0]].concat();
            (from, Some(to))
        }
        Scope::Prefix(prefix) => range(prefix),
    };
    let sql = match lanes.settings.mode {
        super::settings::Kind::Row => &board::LIST_ROW,
        _ => &board::LIST_SESSION,
    };
    let rows = lanes.ask(sql, values![from, to]).await?;
    rows.iter().filter_map(|row| holding(row).transpose()).collect()
}

/// How often and how many times an eviction looks whether it is done.
const LOOK: Duration = Duration::from_millis(10);
const LOOKS: u32 = 300;
/// After how many looks a holder that does not let go is ended.
const PATIENCE: u32 = 100;
