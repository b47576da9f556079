//! Operators' requests: list holders and waiters, evict a holder.

use std::collections::HashMap;

use super::connection::store::OpenStore;
use super::layout::row::{self, ClaimRow};
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
    let rows = read(store, scope).map_err(|error| store.sqlite_error(error))?;
    let now = store.boot.now_ms();
    let mut dead: HashMap<i64, bool> = HashMap::new();
    let mut is_dead = |row: &ClaimRow| {
        let Session(id) = row.session;
        *dead.entry(id).or_insert_with(|| store.find_dead(row.session).is_some())
    };
    let mut holdings: Vec<Holding> = Vec::new();
    for (name, mut rows) in rows {
        rows.retain(|row| row.expires > now && !is_dead(row));
        let holders = rows.iter().filter(|row| row.is_holder()).map(|row| row.holder(now));
        // A name that is not a valid key was written by a foreign client.
        let Ok(key) = Key::new(name) else { continue };
        // Without a holder that lives, the key is about to be handed off.
        let Some(mut holding) = Holding::of(key, holders.collect()) else { continue };
        let waiters = rows.iter().filter(|row| !row.is_holder());
        holding.waiters = waiters.map(|row| row.waiter(now)).collect();
        holdings.push(holding);
    }
    Ok(holdings)
}

/// The rows of each key, holders first, as they were at one moment.
fn read(store: &OpenStore, scope: Scope<'_>) -> rusqlite::Result<Vec<(String, Vec<ClaimRow>)>> {
    let transaction = store.connection.unchecked_transaction()?;
    let mut keys: Vec<(String, Vec<ClaimRow>)> = Vec::new();
    for (name, row) in row::rows(&transaction, scope, store.boot.now_ms())? {
        if keys.last().is_none_or(|(last, _)| *last != name) {
            keys.push((name, Vec::new()));
        }
        let Some((name, rows)) = keys.last_mut() else { continue };
        if row.is_marker() {
            rows.extend(row::holders_of(&transaction, name)?);
        } else {
            rows.push(row);
        }
    }
    transaction.commit()?;
    Ok(keys)
}

/// Force-releases exactly the grant in whose range this token is. `true` if it was held until now.
pub(super) fn evict(store: &mut OpenStore, key: &Key, token: FencingToken) -> Result<bool> {
    store.transact(|transaction| delete_grant(transaction, key, token))
}

fn delete_grant(
    transaction: &mut WriteTransaction<'_>,
    key: &Key,
    token: FencingToken,
) -> Result<bool, Abort> {
    let holders = row::all_holders(transaction.connection, key)?;
    let Some(holder) = holders.iter().find(|holder| holder.has_token(token)) else {
        return Ok(false);
    };
    transaction.delete_holder(key, holder)?;
    transaction.wake(key, holder, WakeReason::Evicted);
    transaction.settle(key)?;
    Ok(holder.expires > transaction.now)
}
