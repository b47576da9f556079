//! Release: deletes a claim's key, whether it holds, waits or has an unknown outcome.
//!
//! Most releases are one delete. But if the outcome of a request that writes the claim is unknown,
//! that request may still be on its way, and would write the claim again after the delete: a lock
//! that no client knows of, for as long as the shared lease is kept alive. So such a release also
//! writes a *tombstone*, in the same transaction and on the same lease. Every write of a claim
//! compares with it (see `acquire`):
//!
//! - while the lease lives, the tombstone is there, and the late request is refused by it;
//! - when the lease has ended, the tombstone is deleted with it, and etcd refuses the late request,
//!   because that names a lease which does not exist.
//!
//! Tombstones cannot be deleted earlier, because there is no bound on how late a request may be. So
//! they are counted for each session: one with too many gets no new claims, and is revoked with its
//! last.
//!
//! A release that fails is repeated by the engine; when the engine has given up, or has forgotten a
//! claim, [`sweep`] releases it. Without that, the lease that it shares with other claims would
//! keep it for ever.

use std::sync::Weak;
use std::time::Duration;

use super::Context;
use super::claims::{ClaimState, request_limit};
use super::connection::Connection;
use super::error::lease_not_found;
use super::layout::messages::{DeleteRangeRequest, DeleteRangeResponse, TxnRequest, TxnResponse};
use super::layout::{self, DELETE, Space, TXN};
use super::session::revoke;
use crate::backend::Claim;
use crate::error::Result;

/// How often to check for abandoned claims.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Releases a claim. `true` if it was held until now.
pub(super) async fn release(context: &Context, claim: &Claim) -> Result<bool> {
    let Some(state) = context.claims.begin_release(claim) else { return Ok(false) };
    // The server has deleted the key with the lease, and refuses late requests for it.
    if state.session.has_ended() {
        context.claims.remove(claim);
        return Ok(false);
    }
    let deleted = if claim.unconfirmed || state.unconfirmed {
        delete_with_tombstone(&context.connection, &context.space, &state).await
    } else {
        delete(&context.connection, &state).await
    };
    let was_there = match deleted {
        Ok(was_there) => was_there,
        Err(error) if lease_not_found(&error) => {
            state.session.set_ended();
            false
        }
        Err(error) => return Err(error),
    };
    if let Some(unused) = context.claims.remove(claim) {
        revoke(&context.connection, &unused).await;
    }
    // If the outcome of an earlier release is unknown, that one may have deleted the key.
    Ok(state.granted && (was_there || state.released.is_some()))
}

/// Deletes the claim's key. `true` if it was there, or may have been.
async fn delete(connection: &Connection, state: &ClaimState) -> Result<bool> {
    let request = DeleteRangeRequest { key: state.server_key.clone() };
    let limit = request_limit(state.claim.ttl);
    let response = connection.call::<_, DeleteRangeResponse>(DELETE, request, limit).await?;
    Ok(response.body.deleted > 0 || response.unconfirmed)
}

/// Deletes the claim's key and writes its tombstone. `true` if the key was there, or may have been.
async fn delete_with_tombstone(
    connection: &Connection,
    space: &Space,
    state: &ClaimState,
) -> Result<bool> {
    let lease = state.session.id;
    let tombstone = space.tombstone_key(lease, state.claim.owner);
    let request = TxnRequest {
        compare: Vec::new(),
        success: vec![
            layout::put_op(&tombstone, String::new(), lease),
            layout::delete_op(&state.server_key),
        ],
        failure: Vec::new(),
    };
    // Before the request is sent, because it may be carried out without a response.
    state.session.add_tombstone();
    let limit = request_limit(state.claim.ttl);
    let response = connection.call::<_, TxnResponse>(TXN, request, limit).await?;
    Ok(layout::deleted(&response.body) > 0 || response.unconfirmed)
}

/// The task that releases abandoned claims. Ends with the context.
pub(super) async fn sweep(context: Weak<Context>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        let Some(context) = context.upgrade() else { return };
        for claim in context.claims.abandoned() {
            // If it fails, the claim is still abandoned, and the next round tries again.
            let _retried = release(&context, &claim).await;
        }
    }
}
