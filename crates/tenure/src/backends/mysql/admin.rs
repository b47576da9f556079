//! Requests of operators: list holders and waiters, evict a holder.

use super::layout::listing::Listing;
use super::layout::rows::{self, KeyState};
use super::lease::{QUERY_LIMIT, other_modes};
use super::wake_connection::WakeTarget;
use super::{Context, ServerLocks, row, session};
use crate::backend::{Holding, Scope};
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

pub(super) async fn list(context: &Context, scope: Scope<'_>) -> Result<Vec<Holding>> {
    let tables = &context.tables;
    let sql = Listing::select(&tables.statements, scope);
    Listing::read(&tables.main().execute(sql, QUERY_LIMIT).await?)
}

/// Ends the turn of the holder and wakes its client, which then releases the server's own lock; and
/// wakes the client of the next holder. If the holder is a claim of this client, its server's own
/// lock is released here.
pub(super) async fn evict(context: &Context, key: &Key, token: FencingToken) -> Result<bool> {
    let tables = &context.tables;
    if tables.statements.other_modes {
        let Some(wake) = other_modes::evict(tables, key, token).await? else { return Ok(false) };
        context.waiters.wake(&wake, QUERY_LIMIT).await;
        return Ok(true);
    }
    let sql = tables.statements.evict(key, token);
    let response = tables.connection_for(key).execute_once(sql, QUERY_LIMIT).await?;
    let [evicted, others @ ..] = &*response.result_sets else { return Ok(false) };
    let Some(evicted) = evicted.first() else { return Ok(false) };
    let mut targets = Vec::new();
    // The evicted holder's client: it may run `until_lost`.
    if rows::value::<Option<u64>>(evicted, "wake_connection")?.is_some() {
        targets.push(WakeTarget::Client { wake_id: rows::text(evicted, "bell")? });
    }
    // The next holder's client: it may run `until_free`.
    if let Some(row) = others.last().and_then(|rows| rows.first()) {
        targets.extend(WakeTarget::after_handoff(&KeyState::read(row)?, tables.wake_id()));
    }
    if let Ok(owner) = rows::text(evicted, "owner")?.parse() {
        match &context.server_locks {
            ServerLocks::None => {}
            ServerLocks::Named(locks) => session::release::unlock_lost(locks, tables, key, owner),
            ServerLocks::Row(locks) => {
                row::release::end_transaction(locks, key, owner, QUERY_LIMIT).await;
            }
        }
    }
    context.waiters.wake(&targets, QUERY_LIMIT).await;
    Ok(true)
}
