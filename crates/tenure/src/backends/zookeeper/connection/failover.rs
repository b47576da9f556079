//! Moves a session away from a server that does not respond: one that is stopped, or cut off from
//! its ensemble.
//!
//! A follower that has lost its leader goes on responding to the pings of the client library for
//! many ticks. The library therefore stays with it, while the leader, which hears nothing of the
//! session, ends it. So a request without a response is the signal to move, and not the state of
//! the connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::super::config::Config;
use super::connect;
use super::session::Session;

/// A request without a response yet. If it is dropped so after a while, its server is suspected,
/// unless that responded to another request meanwhile.
pub(crate) struct PendingCall<'a> {
    config: &'a Config,
    session: &'a Arc<Session>,
    since: Instant,
    open: bool,
}

impl<'a> PendingCall<'a> {
    pub(crate) fn new(config: &'a Config, session: &'a Arc<Session>) -> PendingCall<'a> {
        PendingCall { config, session, since: Instant::now(), open: true }
    }

    /// The response came; `by_majority` if only a server with a majority can give it.
    pub(crate) fn finish(mut self, by_majority: bool) {
        self.open = false;
        if by_majority {
            self.session.note_majority();
        }
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        let overdue = self.open && self.since.elapsed() >= self.session.lease() / 8;
        let has_runtime = || tokio::runtime::Handle::try_current().is_ok();
        if overdue && connect::can_move(self.config) && has_runtime() {
            let config = self.config.clone();
            let session = self.session.clone();
            let since = self.since;
            tokio::spawn(async move { move_session(&config, &session, since).await });
        }
    }
}

/// Moves the session to a server that is known to have a majority. Requests that the left server
/// may still pass on are refused by the leader, which knows to which server a session has moved.
async fn move_session(config: &Config, session: &Session, since: Instant) {
    let Ok(_one_at_a_time) = session.moving.try_lock() else { return };
    if session.had_majority_since(since) {
        return;
    }
    let limit = session.lease() / 4;
    let serving = serving(config, limit).await;
    // If all servers open sessions, so does the current one: it is only slow, and a move would
    // lose the requests that are under way.
    let helps = !serving.is_empty() && serving.len() < config.hosts.len();
    if !helps || session.has_ended() || session.had_majority_since(since) {
        return;
    }
    let previous = session.client();
    let hosts = serving.join(",");
    let resumed = tokio::time::timeout(limit, connect::resume(config, &previous, &hosts)).await;
    if let Ok(Ok(client)) = resumed {
        session.set_client(client);
    }
}

/// The servers that open a session now.
async fn serving(config: &Config, limit: Duration) -> Vec<String> {
    let probe =
        |host: String| async move { connect::opens_sessions(config, &host).await.then_some(host) };
    let mut probes: FuturesUnordered<_> = config.addresses().into_iter().map(probe).collect();
    let mut serving = Vec::new();
    let mut deadline = tokio::time::Instant::now() + limit;
    while let Ok(Some(found)) = tokio::time::timeout_at(deadline, probes.next()).await {
        if let Some(host) = found {
            serving.push(host);
            // One is enough to move to. The others get half of the limit more to show that they
            // serve too, in which case the session stays.
            deadline = deadline.min(tokio::time::Instant::now() + limit / 2);
        }
    }
    serving
}
