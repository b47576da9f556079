//! Downgrade with `layout=queue`: writes into the data of the holder's node that it is shared.
//!
//! State at the server: the node stays where it is, with its name, its order and its czxid, so that
//! the lock is never free and the token stays. The name goes on saying that the claim is exclusive,
//! so that writers, Curator and earlier versions go on waiting for the node to be deleted.
//! A reader that has this node and no other writer before it reads the data, with the watch that it
//! waits by, and passes when they say so. A node that is exclusive by its name and shared by its
//! data is always the first: an exclusive claim holds only there.
//!
//! Who may change it: the holder, by this one write. It is never taken back: a foreign client that
//! overwrites the data (Curator's request of a revocation does) only keeps later readers waiting.
//!
//! Races: a write that arrives after the release, an eviction or the end of the session finds no
//! node and creates none. A repeated one writes the same. The write is a proof by a majority that
//! the node exists, so that its response is a lease, as that of a renewal.

use zookeeper_client::Error as ClientError;

use super::super::claims::TrackedState;
use super::super::connection::session::Session;
use super::super::error;
use super::super::layout::node_data::{self, Mark};
use crate::backend::{Claim, Grant, LostReason};
use crate::error::{Error, Result};
use crate::token::FencingToken;

/// Makes the exclusive grant with this token shared. `Lost` if the claim does not hold it.
pub(crate) async fn downgrade(
    session: &Session,
    claim: &Claim,
    token: FencingToken,
) -> Result<Grant> {
    let node = match session.claims.state(claim) {
        Some(TrackedState::Held(node)) if node.has(token) => node,
        None if session.number > 0 => return Err(Error::gone(LostReason::SessionGone)),
        _ => return Err(Error::not_held()),
    };
    let data = node_data::encode(&claim.holder_info, session.timeout(), Some(Mark::Shared));
    match session.client().set_data(&node.path, &data, None).await {
        Ok(_) => {
            session.claims.touch(claim);
            Ok(session.grant(claim, node.token))
        }
        Err(ClientError::NoNode) => {
            session.claims.remove(claim);
            Err(Error::gone(LostReason::Evicted))
        }
        Err(error) => Err(error::from_client(error)),
    }
}
