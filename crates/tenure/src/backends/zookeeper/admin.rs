//! Operator requests: list holders and waiters, force-release a grant, and the condition for
//! transactions of the user.

use futures_util::future::join_all;

use super::config::Layout;
use super::connection::session::Session;
use super::ephemeral::release::delete_pair;
use super::nodes::{CONCURRENT_READS, StoredNode, read, read_all, synced_children, was_deleted};
use super::queue::order::{self, Queue};
use super::{Condition, error, layout};
use crate::backend::{Holding, Mode, Scope};
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
    let children = synced_children(session, path).await?;
    if !children.iter().any(|name| layout::is_contender(name)) {
        return Ok(None);
    }
    let queue = Queue::of(children);
    let mut nodes = read_all(session, path, queue.names()).await?;
    let waiters = nodes.split_off(holders(&nodes));
    let holders = nodes.iter().map(StoredNode::holder).collect::<Result<_>>()?;
    let mut holding = Holding::of(key.clone(), holders);
    if let Some(holding) = &mut holding {
        holding.waiters = waiters.iter().map(StoredNode::waiter).collect();
    }
    Ok(holding)
}

/// How many of these nodes, read in their order, are those of holders.
fn holders(nodes: &[StoredNode]) -> usize {
    let marked = nodes.iter().rposition(StoredNode::is_marked_held).map_or(0, |last| last + 1);
    order::fitting(nodes.iter().map(StoredNode::mode)).max(marked)
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
    holding.waiters = waiters.iter().map(StoredNode::waiter).collect();
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
        Layout::Queue => evict_holder(session, &path, token).await,
        Layout::Ephemeral => evict_ephemeral(session, &path, token).await,
    }
}

/// The name of a node is never used again, so that the deletion cannot hit another claim.
async fn evict_holder(session: &Session, path: &str, token: FencingToken) -> Result<bool> {
    match holder_node(session, path, token).await? {
        Some(node) => was_deleted(session.client().delete(&node.path, None).await),
        None => Ok(false),
    }
}

/// The node of the holder with this token.
async fn holder_node(
    session: &Session,
    path: &str,
    token: FencingToken,
) -> Result<Option<StoredNode>> {
    let queue = Queue::of(synced_children(session, path).await?);
    let most = if queue.is_lock() {
        // As many as hold if the first was made shared; its data say whether it was.
        queue.holders(Some(Mode::Shared))
    } else {
        // The limit in a name may be lower than that by which the claim was granted.
        queue.names().len()
    };
    let mut nodes = read_all(session, path, &queue.names()[..most]).await?;
    nodes.truncate(holders(&nodes));
    Ok(nodes.into_iter().find(|node| layout::has_token(node.stat.czxid, token)))
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
    let path = session.tree.key(key);
    if layout == Layout::Queue {
        let node = holder_node(session, &path, token).await?;
        return Ok(node.map(|node| Condition { version: node.stat.version, path: node.path }));
    }
    let companion = layout::companion(&path);
    let children = synced_children(session, &companion).await?;
    for child in children.iter().filter(|child| layout::is_holder_node(child)) {
        let path = format!("{companion}/{child}");
        let stat = client.check_stat(&path).await.map_err(error::from_client)?;
        if let Some(stat) = stat
            && layout::has_token(stat.czxid, token)
        {
            return Ok(Some(Condition { path, version: stat.version }));
        }
    }
    Ok(None)
}
