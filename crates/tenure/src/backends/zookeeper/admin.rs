//! Operator requests: list holders and waiters, force-release a grant, and the condition for
//! transactions of the user.

use futures_util::future::join_all;

use super::config::Layout;
use super::connection::session::Session;
use super::ephemeral::release::delete_pair;
use super::nodes::{CONCURRENT_READS, read, read_all, synced_children, was_deleted};
use super::{Condition, error, layout};
use crate::backend::{Holding, Scope, Waiter};
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

/// The held locks of a scope with their waiters, sorted by key.
pub(super) async fn list(
    session: &Session,
    layout: Layout,
    scope: Scope<'_>,
) -> Result<Vec<Holding>> {
    let keys = match scope {
        Scope::Key(key) => vec![key.clone()],
        Scope::Prefix(_) => keys(session, scope).await?,
    };
    let mut holdings = Vec::new();
    for chunk in keys.chunks(CONCURRENT_READS) {
        let reads: Vec<_> = chunk.iter().map(|key| holding(session, layout, key)).collect();
        for found in join_all(reads).await {
            holdings.extend(found?);
        }
    }
    Ok(holdings)
}

/// The keys of a scope that have a node.
async fn keys(session: &Session, scope: Scope<'_>) -> Result<Vec<Key>> {
    let children = synced_children(session, session.tree.root()).await?;
    let mut keys: Vec<_> = children.iter().filter_map(|name| layout::decode(name)).collect();
    keys.retain(|key| scope.contains(key));
    keys.sort();
    Ok(keys)
}

async fn holding(session: &Session, layout: Layout, key: &Key) -> Result<Option<Holding>> {
    let path = session.tree.key(key);
    match layout {
        Layout::Queue => queue_holding(session, key, &path).await,
        Layout::Ephemeral => ephemeral_holding(session, key, &path).await,
    }
}

async fn queue_holding(session: &Session, key: &Key, path: &str) -> Result<Option<Holding>> {
    let mut children = synced_children(session, path).await?;
    if !children.iter().any(|name| layout::is_contender(name)) {
        return Ok(None);
    }
    layout::sort(&mut children);
    let mut nodes = read_all(session, path, &children).await?.into_iter();
    let Some(first) = nodes.next() else { return Ok(None) };
    let mut holding = Holding::new(key.clone(), first.holder()?);
    holding.waiters = nodes.map(|node| Waiter::new(&node.holder_info)).collect();
    Ok(Some(holding))
}

async fn ephemeral_holding(session: &Session, key: &Key, path: &str) -> Result<Option<Holding>> {
    let companion = layout::companion(path);
    let mut children = synced_children(session, &companion).await?;
    let holder = match read(session, path).await? {
        Some(node) if node.is_ephemeral() => node.holder()?,
        Some(_) | None => return Ok(None),
    };
    children.retain(|name| layout::is_waiter_node(name));
    layout::sort_after(&mut children, layout::WAIT);
    let waiters = read_all(session, &companion, &children).await?;
    let mut holding = Holding::new(key.clone(), holder);
    holding.waiters = waiters.iter().map(|node| Waiter::new(&node.holder_info)).collect();
    Ok(Some(holding))
}

/// Force-releases exactly the grant with this token.
pub(super) async fn evict(
    session: &Session,
    layout: Layout,
    key: &Key,
    token: FencingToken,
) -> Result<bool> {
    let path = session.tree.key(key);
    match layout {
        Layout::Queue => evict_first(session, &path, token).await,
        Layout::Ephemeral => evict_ephemeral(session, &path, token).await,
    }
}

/// Only the first node is a grant. Its name is never used again, so that the deletion cannot hit
/// another claim.
async fn evict_first(session: &Session, path: &str, token: FencingToken) -> Result<bool> {
    let client = session.client();
    let mut children = synced_children(session, path).await?;
    layout::sort(&mut children);
    let Some(first) = children.first() else { return Ok(false) };
    let first = format!("{path}/{first}");
    match client.check_stat(&first).await.map_err(error::from_client)? {
        Some(stat) if layout::has_token(stat.czxid, token) => {
            was_deleted(client.delete(&first, None).await)
        }
        Some(_) | None => Ok(false),
    }
}

async fn evict_ephemeral(session: &Session, path: &str, token: FencingToken) -> Result<bool> {
    let client = session.client();
    let companion = layout::companion(path);
    let children = synced_children(session, &companion).await?;
    for child in children.iter().filter(|child| layout::is_holder_node(child)) {
        let hold = format!("{companion}/{child}");
        let stat = client.check_stat(&hold).await.map_err(error::from_client)?;
        if stat.is_some_and(|stat| layout::has_token(stat.czxid, token)) {
            return delete_pair(session, &hold, path).await;
        }
    }
    // A foreign client has only the lock, without a holder's node.
    match client.check_stat(path).await.map_err(error::from_client)? {
        Some(stat) if layout::has_token(stat.czxid, token) => {
            was_deleted(client.delete(path, Some(stat.version)).await)
        }
        Some(_) | None => Ok(false),
    }
}

/// The node that exists exactly as long as this grant is held. Its name is never used again.
pub(super) async fn condition(
    session: &Session,
    layout: Layout,
    key: &Key,
    token: FencingToken,
) -> Result<Option<Condition>> {
    let client = session.client();
    let node = session.tree.key(key);
    let mut candidates = match layout {
        Layout::Queue => {
            let mut children = synced_children(session, &node).await?;
            layout::sort(&mut children);
            children.truncate(1);
            children.iter().map(|child| format!("{node}/{child}")).collect::<Vec<_>>()
        }
        Layout::Ephemeral => {
            let companion = layout::companion(&node);
            let children = synced_children(session, &companion).await?;
            let holds = children.iter().filter(|child| layout::is_holder_node(child));
            holds.map(|child| format!("{companion}/{child}")).collect()
        }
    };
    while let Some(path) = candidates.pop() {
        let stat = client.check_stat(&path).await.map_err(error::from_client)?;
        if let Some(stat) = stat
            && layout::has_token(stat.czxid, token)
        {
            return Ok(Some(Condition { path, version: stat.version }));
        }
    }
    Ok(None)
}
