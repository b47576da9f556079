//! Operators' requests: list holders and waiters, evict a holder.

use std::collections::HashMap;

use super::connection::store::OpenStore;
use super::layout::row;
use super::liveness::Session;
use super::transaction::{Abort, WriteTransaction};
use super::wake_socket::WakeReason;
use crate::backend::{Holding, Scope};
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

/// Lists holders and their waiters. Leaves out those of dead sessions, though their rows are still
/// in the file.
pub(super) fn list(store: &OpenStore, scope: Scope<'_>) -> Result<Vec<Holding>> {
    let now = store.boot.now_ms();
    let rows = row::rows(&store.connection, scope, now);
    let rows = rows.map_err(|error| store.sqlite_error(error))?;
    let mut dead: HashMap<i64, bool> = HashMap::new();
    let mut holdings: Vec<Holding> = Vec::new();
    for (name, row) in rows {
        let Session(id) = row.session;
        if *dead.entry(id).or_insert_with(|| store.find_dead(row.session).is_some()) {
            continue;
        }
        if row.is_holder() {
            // A name that is not a valid key was written by a foreign client.
            let key = Key::new(name).ok();
            holdings.extend(key.map(|key| Holding::new(key, row.holder(now))));
        } else if let Some(held) = holdings.last_mut().filter(|held| held.key.as_str() == name) {
            held.waiters.push(row.waiter(now));
        }
        // A waiter without a holder that lives: the key is free, and about to be handed off.
    }
    Ok(holdings)
}

/// Force-releases exactly the grant with this token. `true` if it was held until now.
pub(super) fn evict(store: &mut OpenStore, key: &Key, token: FencingToken) -> Result<bool> {
    store.transact(|transaction| delete_grant(transaction, key, token))
}

fn delete_grant(
    transaction: &mut WriteTransaction<'_>,
    key: &Key,
    token: FencingToken,
) -> Result<bool, Abort> {
    let head = transaction.head(key)?;
    let Some(holder) = head.filter(|head| head.token == Some(token)) else { return Ok(false) };
    transaction.delete(key, &holder)?;
    transaction.wake(key, &holder, WakeReason::Evicted);
    transaction.settle(key)?;
    Ok(holder.expires > transaction.now)
}
