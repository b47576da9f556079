//! Requests of operators: list holders and waiters, evict a holder.

use std::sync::Arc;
use std::time::Duration;

use super::config::LockMode;
use super::connection::pool::Pool;
use super::connection::statement::values;
use super::error::{self, is_missing_column};
use super::layout::columns::{get, holding, key_bytes, key_range, lease_holding};
use super::layout::{holders, lease, registry};
use crate::backend::{Holding, Scope};
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

/// How often an eviction checks whether the lock has been released.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
const MAX_CHECKS: u32 = 300;
/// After how many checks the session of a holder that does not release is ended.
const CHECKS_BEFORE_TERMINATION: u32 = 100;

pub(super) async fn list(pool: &Arc<Pool>, scope: Scope<'_>) -> Result<Vec<Holding>> {
    let rows = match pool.config.mode {
        LockMode::Lease => {
            let rows = match scope {
                Scope::Key(key) => pool.query(&lease::LIST_KEY, values![key_bytes(key)]).await?,
                Scope::Prefix(prefix) => {
                    let (from, to) = key_range(prefix);
                    pool.query(&lease::LIST_RANGE, values![from, to]).await?
                }
            };
            return rows.iter().filter_map(|row| lease_holding(row).transpose()).collect();
        }
        LockMode::Session => {
            let (from, to) = registry_range(scope);
            pool.query(&registry::LIST_SESSIONS, values![from, to]).await?
        }
        LockMode::Row => {
            let (from, to) = registry_range(scope);
            pool.query(&registry::LIST_ROWS, values![from, to]).await?
        }
    };
    rows.iter().filter_map(|row| holding(row).transpose()).collect()
}

/// The keys of a listing: from the first one, and before the second.
fn registry_range(scope: Scope<'_>) -> (Vec<u8>, Option<Vec<u8>>) {
    match scope {
        Scope::Key(key) => {
            let from = key_bytes(key);
            // The next key in the order of bytes.
            let to = [&from[..], &[0]].concat();
            (from, Some(to))
        }
        Scope::Prefix(prefix) => key_range(prefix),
    }
}

/// Returns whether there was such a grant.
pub(super) async fn evict(pool: &Arc<Pool>, key: &Key, token: FencingToken) -> Result<bool> {
    match pool.config.mode {
        LockMode::Lease => evict_lease(pool, key, token).await,
        LockMode::Session | LockMode::Row => evict_from_session(pool, key, token).await,
    }
}

async fn evict_lease(pool: &Arc<Pool>, key: &Key, token: FencingToken) -> Result<bool> {
    let values = || values![key_bytes(key), token.as_i64()];
    let found = match pool.query(&holders::FIND_GRANT, values()).await {
        // An earlier version made the tables.
        Err(error) if is_missing_column(&error) => pool.query(&lease::FIND_GRANT, values()).await?,
        found => found?,
    };
    let Some(row) = found.first() else { return Ok(false) };
    let owner: String = get(row, "owner")?;
    let channel: String = get(row, "chan")?;
    let mut with_owner = values();
    with_owner.extend(values![owner.clone()]);
    let evicted = match pool.query(&holders::EVICT, with_owner).await {
        Err(error) if is_missing_column(&error) => pool.query(&lease::EVICT, values()).await?,
        evicted => evicted?,
    };
    if evicted.is_empty() {
        return Ok(false);
    }
    // A hint: without it the holder learns of the eviction at its next renewal.
    pool.query(&lease::NOTIFY, values![channel, format!("lost {owner}")]).await?;
    Ok(true)
}

/// Tells the holder's client to release, so that the other locks of its session stay. If it does
/// not within a second, its session is ended.
async fn evict_from_session(pool: &Arc<Pool>, key: &Key, token: FencingToken) -> Result<bool> {
    let Some(grant) = registry::find_grant(pool, key, token).await? else { return Ok(false) };
    let message = format!("lost {}", grant.owner);
    pool.query(&lease::NOTIFY, values![grant.channel, message]).await?;
    for check in 0..MAX_CHECKS {
        tokio::time::sleep(CHECK_INTERVAL).await;
        if registry::find_grant(pool, key, token).await?.is_none() {
            registry::remove_claim(pool, key, grant.owner).await?;
            return Ok(true);
        }
        if check >= CHECKS_BEFORE_TERMINATION {
            registry::terminate_session(pool, key, token).await?;
        }
    }
    Err(error::not_evicted(key))
}
