//! Renewing, by mode.

use std::time::Duration;

use super::{Context, ServerLocks, lease, row, session};
use crate::backend::Claim;
use crate::error::Result;

pub(super) async fn renew(context: &Context, claims: &[Claim]) -> Vec<Result<Duration>> {
    let tables = &context.tables;
    match &context.server_locks {
        ServerLocks::Named(locks) => session::renew::renew(locks, tables, claims).await,
        ServerLocks::Row(locks) => row::renew::renew(locks, tables, claims).await,
        ServerLocks::None => match lease::renew::renew(tables, claims).await {
            Ok(renewal) => claims.iter().map(|claim| renewal.lease(claim)).collect(),
            Err(error) => vec![Err(error); claims.len()],
        },
    }
}
