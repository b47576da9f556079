//! What people see and do: who holds what, who waits, and force-release.

use futures_util::future::join_all;
use zookeeper_client::{Error as ClientError, Stat};

use super::session::{Session, token};
use super::settings::Layout;
use super::{Condition, fault, names, queue, record, single};
use crate::backend::{Note, Scope};
use crate::claim::{Holder, Holding, Waiter};
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

/// Who holds what, and who waits, sorted by key.
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
    for some in keys.chunks(AT_ONCE) {
        let looks: Vec<_> = some.iter().map(|key| holding(session, layout, key)).collect();
        for found in join_all(looks).await {
            holdings.extend(found?);
        }
    }
    Ok(holdings)
}

/// The keys that have a node.
async fn keys(session: &Session, scope: Scope<'_>) -> Result<Vec<Key>> {
    let children = fresh_children(session, session.tree.root()).await?;
    let mut keys: Vec<_> = children.iter().filter_map(|name| names::decode(name)).collect();
    keys.retain(|key| scope.holds(key));
    keys.sort();
    Ok(keys)
}

async fn holding(session: &Session, layout: Layout, key: &Key) -> Result<Option<Holding>> {
    let node = session.tree.key(key);
    match layout {
        Layout::Queue => queue_holding(session, key, &node).await,
        Layout::Ephemeral => single_holding(session, key, &node).await,
    }
}

async fn queue_holding(session: &Session, key: &Key, node: &str) -> Result<Option<Holding>> {
    let mut children = fresh_children(session, node).await?;
    if !children.iter().any(|name| names::is_contender(name)) {
        return Ok(None);
    }
    names::sort(&mut children);
    let records = records(session, node, &children).await?;
    let mut records = records.into_iter();
    let Some(first) = records.next() else { return Ok(None) };
    let mut holding = Holding::new(key.clone(), first.holder()?);
    holding.waiters = records.map(|record| Waiter::new(&record.note)).collect();
    Ok(Some(holding))
}

async fn single_holding(session: &Session, key: &Key, node: &str) -> Result<Option<Holding>> {
    let beside = names::beside(node);
    let mut children = fresh_children(session, &beside).await?;
    let holder = match read(session, node).await? {
        Some(record) if record.stat.ephemeral_owner != 0 => record.holder()?,
        Some(_) | None => return Ok(None),
    };
    children.retain(|name| single::is_waiting(name));
    names::sort_by(&mut children, single::WAIT);
    let waiters = records(session, &beside, &children).await?;
    let mut holding = Holding::new(key.clone(), holder);
    holding.waiters = waiters.iter().map(|record| Waiter::new(&record.note)).collect();
    Ok(Some(holding))
}

/// A node and what it says.
struct Record {
    note: Note,
    timeout: Option<std::time::Duration>,
    stat: Stat,
}

impl Record {
    fn holder(&self) -> Result<Holder> {
        let (token, ttl_left) = (Some(token(self.stat.czxid)?), self.timeout);
        Ok(Holder { token, ttl_left, ..Holder::new(&self.note) })
    }
}

/// What is in these nodes, without those that are gone by now.
async fn records(session: &Session, parent: &str, children: &[String]) -> Result<Vec<Record>> {
    let nodes: Vec<_> = children.iter().map(|child| format!("{parent}/{child}")).collect();
    let mut records = Vec::new();
    for some in nodes.chunks(AT_ONCE) {
        let reads: Vec<_> = some.iter().map(|node| read(session, node)).collect();
        for found in join_all(reads).await {
            records.extend(found?);
        }
    }
    Ok(records)
}

async fn read(session: &Session, node: &str) -> Result<Option<Record>> {
    let client = session.client();
    match client.get_data(node).await {
        Ok((data, stat)) => {
            let (note, timeout) = record::decode(&data);
            Ok(Some(Record { note, timeout, stat }))
        }
        Err(ClientError::NoNode) => Ok(None),
        Err(error) => Err(fault::from_client(error)),
    }
}

/// Whose node this is.
pub(super) async fn holder(session: &Session, node: &str) -> Result<Option<Holder>> {
    read(session, node).await?.map(|record| record.holder()).transpose()
}

/// Who holds a lock of one ephemeral node.
pub(super) async fn single_holder(session: &Session, node: &str) -> Result<Option<Holder>> {
    match read(session, node).await? {
        Some(record) if record.stat.ephemeral_owner == 0 => {
            Err(fault::odd(node, "is not ephemeral; use one layout for a chroot"))
        }
        Some(record) => record.holder().map(Some),
        None => Ok(None),
    }
}

/// The children of a node as the leader knows them; none if it is not there.
pub(super) async fn fresh_children(session: &Session, node: &str) -> Result<Vec<String>> {
    let client = session.client();
    let sync = client.sync(node);
    let children = client.list_children(node);
    match tokio::join!(sync, children) {
        (_, Err(ClientError::NoNode)) => Ok(Vec::new()),
        (Err(error), _) | (_, Err(error)) => Err(fault::from_client(error)),
        (Ok(()), Ok(children)) => Ok(children),
    }
}

/// Force-releases the grant with this token.
pub(super) async fn evict(
    session: &Session,
    layout: Layout,
    key: &Key,
    token: FencingToken,
) -> Result<bool> {
    let node = session.tree.key(key);
    match layout {
        Layout::Queue => evict_first(session, &node, token).await,
        Layout::Ephemeral => evict_single(session, &node, token).await,
    }
}

/// Only the first node is a grant. Its name is never used again, so that nobody else's is deleted.
async fn evict_first(session: &Session, node: &str, wanted: FencingToken) -> Result<bool> {
    let client = session.client();
    let mut children = fresh_children(session, node).await?;
    names::sort(&mut children);
    let Some(first) = children.first() else { return Ok(false) };
    let first = format!("{node}/{first}");
    match client.check_stat(&first).await.map_err(fault::from_client)? {
        Some(stat) if token(stat.czxid)? == wanted => {
            queue::gone(client.delete(&first, None).await)
        }
        Some(_) | None => Ok(false),
    }
}

async fn evict_single(session: &Session, node: &str, wanted: FencingToken) -> Result<bool> {
    let client = session.client();
    let beside = names::beside(node);
    let children = fresh_children(session, &beside).await?;
    for child in children.iter().filter(|child| single::is_holding(child)) {
        let hold = format!("{beside}/{child}");
        let stat = client.check_stat(&hold).await.map_err(fault::from_client)?;
        if stat.is_some_and(|stat| u64::try_from(stat.czxid) == Ok(wanted.get())) {
            return single::delete_pair(session, &hold, node).await;
        }
    }
    // A holder that is not ours has nothing beside its node.
    match client.check_stat(node).await.map_err(fault::from_client)? {
        Some(stat) if token(stat.czxid)? == wanted => {
            queue::gone(client.delete(node, Some(stat.version)).await)
        }
        Some(_) | None => Ok(false),
    }
}

/// The node that is there exactly as long as this grant is held. Its name is never used again.
pub(super) async fn condition(
    session: &Session,
    layout: Layout,
    key: &Key,
    wanted: FencingToken,
) -> Result<Option<Condition>> {
    let client = session.client();
    let node = session.tree.key(key);
    let mut candidates = match layout {
        Layout::Queue => {
            let mut children = fresh_children(session, &node).await?;
            names::sort(&mut children);
            children.truncate(1);
            children.iter().map(|child| format!("{node}/{child}")).collect::<Vec<_>>()
        }
        Layout::Ephemeral => {
            let beside = names::beside(&node);
            let children = fresh_children(session, &beside).await?;
            let holds = children.iter().filter(|child| single::is_holding(child));
            holds.map(|child| format!("{beside}/{child}")).collect()
        }
    };
    while let Some(path) = candidates.pop() {
        let stat = client.check_stat(&path).await.map_err(fault::from_client)?;
        if let Some(stat) = stat
            && u64::try_from(stat.czxid) == Ok(wanted.get())
        {
            return Ok(Some(Condition { path, version: stat.version }));
        }
    }
    Ok(None)
}

/// How many reads are under way at the same time.
const AT_ONCE: usize = 64;
