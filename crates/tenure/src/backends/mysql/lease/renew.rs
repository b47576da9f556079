//! Renewing: one packet extends the leases of many claims.
//!
//! The packet skips rows that another transaction has locked, so that one locked row delays no
//! other renewal. Skipped rows are tried again for a short time, and then fail alone.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::super::connection::ConnectionId;
use super::super::error;
use super::super::layout::renewal::{renew_holders, renew_rows};
use super::super::layout::rows;
use super::{LockTables, response_limit};
use crate::backend::{Claim, Mode};
use crate::error::{Error, Result};
use crate::support::backoff::Backoff;

/// The first pause before a locked row is tried again, and for how long it is tried at most. A
/// packet of tenure locks a row for some milliseconds.
const FIRST_RETRY: Duration = Duration::from_millis(2);
const MAX_RETRYING: Duration = Duration::from_secs(1);

/// The results of one renewal.
pub(crate) struct Renewal {
    /// The claims that are held, by owner.
    held: HashMap<String, HeldClaim>,
    /// The connection that executed it.
    connection_id: ConnectionId,
}

struct HeldClaim {
    /// Whether its lease is as long as requested; if not, its row is locked.
    is_extended: bool,
    /// The connection that executed the renewal of this claim.
    connection_id: ConnectionId,
}

impl Renewal {
    /// The lease of a claim.
    ///
    /// # Errors
    ///
    /// `Lost` if the claim is not held, `Unavailable` if its row was locked.
    pub(crate) fn lease(&self, claim: &Claim) -> Result<Duration> {
        match self.held.get(&claim.owner.to_string()) {
            Some(HeldClaim { is_extended: true, .. }) => Ok(claim.ttl),
            Some(_) => Err(error::row_is_locked()),
            None => Err(Error::not_held()),
        }
    }

    /// The connection that executed the renewal of a claim.
    pub(crate) fn connection_id(&self, claim: &Claim) -> &ConnectionId {
        let held = self.held.get(&claim.owner.to_string());
        held.map_or(&self.connection_id, |held| &held.connection_id)
    }

    fn is_locked(&self, claim: &Claim) -> bool {
        self.held.get(&claim.owner.to_string()).is_some_and(|held| !held.is_extended)
    }

    /// Replaces the results of these claims, which were tried once more.
    fn replace(&mut self, claims: &[Claim], retried: Renewal) {
        for claim in claims {
            self.held.remove(&claim.owner.to_string());
        }
        self.held.extend(retried.held);
    }
}

/// Extends the leases of the claims that are held.
pub(crate) async fn renew(tables: &LockTables, claims: &[Claim]) -> Result<Renewal> {
    let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
    let end = Instant::now() + (shortest / 8).min(MAX_RETRYING);
    let mut backoff = Backoff::new(FIRST_RETRY, MAX_RETRYING);
    let mut renewal = renew_once(tables, claims, shortest).await?;
    loop {
        let locked = claims.iter().filter(|claim| renewal.is_locked(claim));
        let locked: Vec<_> = locked.cloned().collect();
        let pause = backoff.next();
        if locked.is_empty() || Instant::now() + pause > end {
            return Ok(renewal);
        }
        tokio::time::sleep(pause).await;
        match renew_once(tables, &locked, shortest).await {
            Ok(retried) => renewal.replace(&locked, retried),
            // The other claims have their results.
            Err(_unavailable) => return Ok(renewal),
        }
    }
}

/// Tries each claim where it probably stands, in the row of its key or among the holders in other
/// modes, and those that were not found in both places: a client that knows exclusive locks only
/// may have handed the key off to a reader alone, and a downgrade may be under way.
async fn renew_once(tables: &LockTables, claims: &[Claim], shortest: Duration) -> Result<Renewal> {
    if !tables.statements.other_modes {
        let claims: Vec<_> = claims.iter().collect();
        let sql = renew_rows(&tables.statements, &claims);
        return execute(tables, sql, shortest).await;
    }
    let is_other =
        |claim: &&Claim| claim.mode != Mode::Exclusive || tables.hints.is_downgraded(claim.owner);
    let (others, exclusive): (Vec<_>, Vec<_>) = claims.iter().partition(is_other);
    let sql = renew_sql(tables, &exclusive, &others);
    let mut renewal = execute(tables, sql, shortest).await?;
    let is_missing = |claim: &&Claim| !renewal.held.contains_key(&claim.owner.to_string());
    let others: Vec<_> = others.into_iter().filter(is_missing).collect();
    let missing: Vec<_> = claims.iter().filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(renewal);
    }
    // In this order: a grant moves from the row to the holders, and never back.
    match execute(tables, renew_sql(tables, &others, &missing), shortest).await {
        Ok(found) => renewal.held.extend(found.held),
        // Neither held nor lost, as far as is known, as if their rows were locked.
        Err(_unavailable) => {
            let connection_id = &renewal.connection_id;
            let unknown = |claim: &&Claim| {
                let connection_id = connection_id.clone();
                (claim.owner.to_string(), HeldClaim { is_extended: false, connection_id })
            };
            renewal.held.extend(missing.iter().map(unknown).collect::<Vec<_>>());
        }
    }
    Ok(renewal)
}

/// One packet for the claims in the rows of their keys, and those among the holders in other modes.
fn renew_sql(tables: &LockTables, in_rows: &[&Claim], holders: &[&Claim]) -> String {
    let statements = &tables.statements;
    match (in_rows, holders) {
        (_, []) => renew_rows(statements, in_rows),
        ([], _) => renew_holders(statements, holders),
        _ => {
            let (rows, holders) =
                (renew_rows(statements, in_rows), renew_holders(statements, holders));
            format!("{rows};{holders}")
        }
    }
}

async fn execute(tables: &LockTables, sql: String, shortest: Duration) -> Result<Renewal> {
    let response = tables.main().execute(sql, response_limit(shortest)).await?;
    let connection_id = response.connection_id.clone();
    let mut held = HashMap::new();
    for row in response.result_sets.iter().flatten() {
        let is_extended = rows::value(row, "is_extended")?;
        let connection_id = connection_id.clone();
        held.insert(rows::text(row, "owner")?, HeldClaim { is_extended, connection_id });
    }
    Ok(Renewal { held, connection_id })
}
