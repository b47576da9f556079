//! Reads and deletes of nodes that several operations share.

use futures_util::future::join_all;
use zookeeper_client::{Error as ClientError, Stat};

use super::connection::session::Session;
use super::error;
use super::layout::node_data::{self, Mark, NodeData};
use super::layout::{self, modes};
use crate::backend::{Holder, Mode, Waiter};
use crate::error::Result;

/// How many reads are under way at the same time.
pub(super) const CONCURRENT_READS: usize = 64;

/// A node of a claim, as it was read.
pub(super) struct StoredNode {
    pub(super) path: String,
    pub(super) stat: Stat,
    data: NodeData,
}

impl StoredNode {
    /// How the claim holds, or wants to hold: by its name, unless it was made shared.
    pub(super) fn mode(&self) -> Mode {
        match (modes::mode_of(layout::name_of(&self.path)), self.data.mark) {
            (Mode::Exclusive, Some(Mark::Shared)) => Mode::Shared,
            (mode, _) => mode,
        }
    }

    /// Whether its data say that the claim holds, although the limit in its name may be too low.
    pub(super) fn is_marked_held(&self) -> bool {
        self.data.mark == Some(Mark::Held)
    }

    pub(super) fn holder(&self) -> Result<Holder> {
        let token = Some(layout::token(self.stat.czxid)?);
        let ttl_left = self.data.timeout;
        Ok(Holder { mode: self.mode(), token, ttl_left, ..Holder::new(&self.data.info) })
    }

    pub(super) fn waiter(&self) -> Waiter {
        Waiter { mode: self.mode(), ..Waiter::new(&self.data.info) }
    }

    pub(super) fn is_ephemeral(&self) -> bool {
        self.stat.ephemeral_owner != 0
    }
}

/// Reads a node; `None` if it does not exist.
pub(super) async fn read(session: &Session, path: &str) -> Result<Option<StoredNode>> {
    match session.client().get_data(path).await {
        Ok((data, stat)) => {
            let data = node_data::decode(&data);
            Ok(Some(StoredNode { path: path.to_owned(), stat, data }))
        }
        Err(ClientError::NoNode) => Ok(None),
        Err(error) => Err(error::from_client(error)),
    }
}

/// Reads these children of a node, without those that do not exist any more.
pub(super) async fn read_all(
    session: &Session,
    parent: &str,
    children: &[String],
) -> Result<Vec<StoredNode>> {
    let paths: Vec<_> = children.iter().map(|child| format!("{parent}/{child}")).collect();
    let mut nodes = Vec::new();
    for chunk in paths.chunks(CONCURRENT_READS) {
        let reads: Vec<_> = chunk.iter().map(|path| read(session, path)).collect();
        for found in join_all(reads).await {
            nodes.extend(found?);
        }
    }
    Ok(nodes)
}

/// The children of a node as the leader knows them; none if it does not exist.
///
/// After a lost connection the session may be at a server that lags behind. The `sync` makes it
/// catch up before the list is read.
pub(super) async fn synced_children(session: &Session, path: &str) -> Result<Vec<String>> {
    let client = session.client();
    let sync = client.sync(path);
    let children = client.list_children(path);
    match tokio::join!(sync, children) {
        (_, Err(ClientError::NoNode)) => Ok(Vec::new()),
        (Err(error), _) | (_, Err(error)) => Err(error::from_client(error)),
        (Ok(()), Ok(children)) => Ok(children),
    }
}

/// Whether a node existed and was deleted. That it did not exist is no error.
pub(super) fn was_deleted(response: Result<(), ClientError>) -> Result<bool> {
    match response {
        Ok(()) => Ok(true),
        Err(ClientError::NoNode) => Ok(false),
        Err(error) => Err(error::from_client(error)),
    }
}
