//! Renew with `layout=queue`: one transaction proves all nodes by a majority.
//!
//! The name of a node is never used again, so that its existence proves the grant. Only if a node
//! is missing, each is read, to find which.

use std::time::Duration;

use futures_util::future::join_all;

use super::super::connection::session::Session;
use super::super::renew::{HeldNode, confirm};
use crate::error::Result;

/// Proves all claims by one request.
pub(crate) async fn renew(session: &Session, claims: &[HeldNode<'_>]) -> Vec<Result<Duration>> {
    let client = session.client();
    let paths: Vec<_> = claims.iter().map(|held| held.node.path.as_str()).collect();
    match session.prove_nodes(&client, &paths).await {
        Ok(true) => claims.iter().map(|held| Ok(held.claim.ttl.min(session.lease()))).collect(),
        Ok(false) => {
            // The refusal was a response by a majority, and these reads come after it.
            let stats = paths.iter().map(|path| client.check_stat(path));
            let stats = join_all(stats.collect::<Vec<_>>()).await;
            claims.iter().zip(stats).map(|(held, stat)| confirm(session, held, stat)).collect()
        }
        Err(error) => vec![Err(error); claims.len()],
    }
}
