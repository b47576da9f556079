//! Keys that are held or waited for in other modes than the exclusive one: acquire, downgrade,
//! release, evict, each one packet. The protocol stands in `layout::other_modes`.
//!
//! **Races.** As for exclusive claims: requests about one key share a connection, so that none
//! takes effect after the release of its claim; an acquire and a downgrade are idempotent, so
//! that they may be repeated over a new connection; a packet that fails in the middle is rolled
//! back as a whole. The wake-ups of a repeated packet are lost: the waiters' polls make up for
//! it.

use mysql_async::Row;

use super::super::connection::Response;
use super::super::layout::other_modes::OtherModes;
use super::super::layout::outcome::{ModeOutcome, WokenClient};
use super::super::layout::statements::Requester;
use super::super::wake_connection::WakeTarget;
use super::release::Released;
use super::{LockTables, QUERY_LIMIT, response_limit};
use crate::backend::{Attempt, Claim, Grant, LostReason};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// Acquires the key in whichever mode, or says who holds it; a claim that waits gets a queue entry.
/// Returns whom the caller has to wake.
pub(crate) async fn acquire(
    tables: &LockTables,
    claim: &Claim,
) -> Result<(Attempt<Grant>, Vec<WakeTarget>)> {
    let limit = response_limit(claim.ttl);
    let connection_id = &tables.record_connection(limit).await?;
    let by = &Requester { wake_id: &tables.wake_id, connection_id };
    if claim.waits {
        tables.hints.record_entering(claim.owner);
    }
    let sql = OtherModes(&tables.statements).acquire(claim, by);
    let response = tables.connection_for(&claim.key).execute(sql, limit).await?;
    let wake = woken(tables, response.result_sets.first())?;
    let outcome = read_outcome(tables, claim, &response)?;
    if let Some(grant) = outcome.granted(claim) {
        tables.hints.record_granted(&claim.key, claim.owner, outcome.queued);
        return Ok((Attempt::Granted(grant), wake));
    }
    outcome.check_kind(claim)?;
    if claim.waits {
        tables.hints.record_queued(claim.owner, outcome.ahead, outcome.newest_token);
    }
    Ok((Attempt::Busy(outcome.busy(claim)), wake))
}

/// Makes the exclusive grant with this token shared.
pub(crate) async fn downgrade(
    tables: &LockTables,
    claim: &Claim,
    token: FencingToken,
) -> Result<(Grant, Vec<WakeTarget>)> {
    // Before the request: if its outcome is unknown, the grant may be in the other table.
    tables.hints.record_downgraded(claim.owner);
    let sql = OtherModes(&tables.statements).downgrade(claim, token);
    let connection = tables.connection_for(&claim.key);
    let response = connection.execute(sql, response_limit(claim.ttl)).await?;
    if response.last_row().is_none() {
        return Err(Error::not_held());
    }
    let wake = woken(tables, response.result_sets.first())?;
    match read_outcome(tables, claim, &response)?.granted(claim) {
        Some(grant) if grant.token == token => Ok((grant, wake)),
        Some(_) => Err(Error::gone(LostReason::TakenOver)),
        None => Err(Error::not_held()),
    }
}

/// Releases or cancels a claim, in whichever mode it holds or waits.
pub(crate) async fn release(tables: &LockTables, claim: &Claim) -> Result<Released> {
    let sql = OtherModes(&tables.statements).release(claim);
    let connection = tables.connection_for(&claim.key);
    let response = connection.execute_once(sql, response_limit(claim.ttl)).await?;
    let was_held = response.first("was_held").unwrap_or(false);
    Ok(Released { was_held, wake: woken(tables, response.result_sets.get(1))? })
}

/// Ends exactly the grant whose range has this token. `None` if there is no such grant.
pub(crate) async fn evict(
    tables: &LockTables,
    key: &Key,
    token: FencingToken,
) -> Result<Option<Vec<WakeTarget>>> {
    let sql = OtherModes(&tables.statements).evict(key, token);
    let response = tables.connection_for(key).execute_once(sql, QUERY_LIMIT).await?;
    if response.result_sets.first().is_none_or(Vec::is_empty) {
        return Ok(None);
    }
    woken(tables, response.result_sets.get(1)).map(Some)
}

/// The clients that the packet has granted the key, as far as they can be woken.
fn woken(tables: &LockTables, rows: Option<&Vec<Row>>) -> Result<Vec<WakeTarget>> {
    let rows = rows.into_iter().flatten();
    let targets =
        rows.map(|row| Ok(WakeTarget::granted(&WokenClient::read(row)?, &tables.wake_id)));
    targets.filter_map(Result::transpose).collect()
}

fn read_outcome(tables: &LockTables, claim: &Claim, response: &Response) -> Result<ModeOutcome> {
    let no_row = || Error::unexpected_response("mysql", "no row of a key after a request about it");
    let outcome = ModeOutcome::read(response.last_row().ok_or_else(no_row)?)?;
    if outcome.in_other_mode {
        tables.hints.record_other_mode(&claim.key);
    }
    Ok(outcome)
}
