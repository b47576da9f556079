//! Downgrade: makes an exclusive grant shared without letting it go.
//!
//! A downgrade names its grant by key, owner and token. One transaction makes that grant shared and
//! lets in the readers at the head of the queue, or changes nothing: a request that comes after the
//! release, an eviction or the end of the lease finds no such grant, and creates none. Repeated, it
//! finds the grant shared, alone or beside others, and extends its lease.

use super::connection::store::OpenStore;
use super::renew::{self, Renewed};
use super::transaction::{Abort, WriteTransaction};
use super::wake_socket::owner_bytes;
use crate::backend::{Claim, Grant, LostReason};
use crate::error::{Error, Result};
use crate::token::FencingToken;

/// Only of an exclusive holder: one of several is shared already.
const DOWNGRADE: &str = "
UPDATE claim SET weight = ?4
WHERE key = ?1 AND place = 0 AND owner = ?2 AND token = ?3 AND weight = ?5 AND capacity = ?5";

/// Makes the grant with the token of the claim shared.
pub(super) fn downgrade(
    store: &mut OpenStore,
    claim: &Claim,
    token: FencingToken,
) -> Result<Grant> {
    if !store.is_file_in_place() {
        return Err(Error::gone(LostReason::SessionGone));
    }
    let (renewed, tokens) = store.transact(|transaction| share(transaction, claim, token))?;
    let ttl = renew::outcome(store, claim, renewed)?;
    Ok(Grant { tokens, ..Grant::new(token, ttl) })
}

/// Returns whether the grant is there, and how many tokens it has.
fn share(
    transaction: &mut WriteTransaction<'_>,
    claim: &Claim,
    token: FencingToken,
) -> Result<(Renewed, u32), Abort> {
    let renewed = renew::renew_one(transaction, claim)?;
    let Renewed::Extended = renewed else { return Ok((renewed, 1)) };
    let owner = owner_bytes(claim.owner);
    let (shared, limit) = (claim.mode.weight(), claim.mode.limit());
    let change = (claim.key.as_str(), &owner[..], token.as_i64(), shared, limit);
    transaction.execute(DOWNGRADE, change)?;
    let state = transaction.settle(&claim.key)?;
    let own = state.holders.iter().find(|holder| holder.token == Some(token));
    Ok((renewed, own.map_or(1, |own| own.tokens)))
}
