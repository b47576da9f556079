//! Downgrade: an exclusive claim becomes a shared one, and is never free in between.
//!
//! **State.** The holder's key is put once more, if it still has the create revision of the grant.
//! It keeps its name, its place in the queue and its token; that it was put twice is what makes it
//! shared (see `layout::queue`). A key of its own among those of readers was rejected: its create
//! revision would be younger than that of a queued writer, which would be granted beside it.
//!
//! **Who sees it.** Readers behind it watch the key for puts too, and come in. Writers, Go clients
//! and older versions of tenure wait for its deletion, as before.
//!
//! **Races.** The transaction changes this one grant or nothing, however late it is carried out,
//! and a second one changes nothing that the first has not. So it needs no tombstone.

use super::super::Context;
use super::super::claims::request_limit;
use super::super::error::{lease_not_found, unavailable};
use super::super::layout::messages::{TxnRequest, TxnResponse};
use super::super::layout::{self, TXN};
use super::super::renew::held;
use super::put_claim;
use crate::backend::{Claim, Grant, LostReason, Mode};
use crate::error::{Error, Result};
use crate::support::clock::Clock;

/// Makes the grant that the claim names shared.
pub(in super::super) async fn downgrade(context: &Context, claim: &Claim) -> Result<Grant> {
    let requested = Clock::Boot.now();
    let state = held(context, claim)?;
    let revision = state.revision.ok_or_else(Error::not_held)?;
    context.sessions.refresh(&state.session);
    match state.claim.mode {
        Mode::Exclusive => {
            let request = TxnRequest {
                compare: vec![layout::if_created_at(&state.server_key, revision)],
                success: vec![put_claim(&state)],
                failure: Vec::new(),
            };
            let limit = request_limit(claim.ttl);
            let response = context.connection.call::<_, TxnResponse>(TXN, request, limit).await;
            match response {
                Ok(response) if response.body.succeeded => {}
                Ok(_) => return Err(Error::not_held()),
                Err(error) if lease_not_found(&error) => {
                    state.session.set_ended();
                    return Err(Error::gone(LostReason::SessionGone));
                }
                Err(error) => return Err(error),
            }
        }
        Mode::Shared => {}
        Mode::Permits { .. } => return Err(Error::invalid("permits cannot be downgraded")),
    }
    match state.session.guaranteed_until().since(requested).min(claim.ttl) {
        left if left.is_zero() => Err(unavailable("the lease is not confirmed")),
        left => Ok(Grant::with_range(layout::token_of(revision)?, left)),
    }
}
