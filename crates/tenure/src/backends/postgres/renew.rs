//! Renews locks, by mode.

use std::sync::Arc;
use std::time::Duration;

use super::ModeState;
use super::connection::pool::Pool;
use super::lease;
use super::row;
use crate::backend::Claim;
use crate::error::Result;

pub(super) async fn renew(
    pool: &Arc<Pool>,
    mode: &ModeState,
    claims: &[Claim],
) -> Vec<Result<Duration>> {
    match mode {
        ModeState::Lease => lease::renew::renew(pool, claims).await,
        ModeState::Session(locks) => locks.renew(claims).await,
        ModeState::Row(locks) => row::renew::renew(locks, claims).await,
    }
}
