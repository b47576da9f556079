//! Renew with `layout=ephemeral`: one transaction proves all locks by a majority, and a read of
//! each shows that it is the one that was granted.
//!
//! The name of the lock is the same for every holder, so that its existence proves nothing by
//! itself: its czxid has to be that of the grant.

use std::time::Duration;

use futures_util::future::join_all;

use super::super::connection::session::Session;
use super::super::renew::{HeldNode, confirm};
use crate::error::Result;

/// Proves all claims in one round trip.
pub(crate) async fn renew(session: &Session, claims: &[HeldNode<'_>]) -> Vec<Result<Duration>> {
    let client = session.client();
    let locks: Vec<_> = claims.iter().map(|held| held.node.path.as_str()).collect();
    let stats = async {
        let stats = locks.iter().map(|lock| client.check_stat(lock));
        join_all(stats.collect::<Vec<_>>()).await
    };
    // The reads are sent after the proof, and are not older than it. A refused proof is a response
    // by a majority too: the reads show which lock is missing.
    match tokio::join!(biased; session.prove_nodes(&client, &locks), stats) {
        (Ok(_), stats) => {
            claims.iter().zip(stats).map(|(held, stat)| confirm(session, held, stat)).collect()
        }
        (Err(error), _) => vec![Err(error); claims.len()],
    }
}
