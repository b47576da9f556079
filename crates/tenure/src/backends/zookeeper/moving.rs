//! Leaving a server that does not answer: stopped, or cut off from its ensemble. Such a follower
//! goes on answering the library's pings for many ticks, so that the library stays, while the lease
//! ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::session::Session;
use super::settings::Settings;

/// A request without an answer yet. One that is given up after a while speaks against the server,
/// unless others were answered meanwhile.
pub(super) struct Unanswered<'a> {
    settings: &'a Settings,
    session: &'a Arc<Session>,
    since: Instant,
    open: bool,
}

impl<'a> Unanswered<'a> {
    pub(super) fn new(settings: &'a Settings, session: &'a Arc<Session>) -> Unanswered<'a> {
        Unanswered { settings, session, since: Instant::now(), open: true }
    }

    /// It was answered, by a server that has its majority if `proves`.
    pub(super) fn answered(mut self, proves: bool) {
        self.open = false;
        if proves {
            self.session.serves();
        }
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let silent = self.open && self.since.elapsed() >= self.session.lease() / 8;
        if silent && self.settings.can_move() && tokio::runtime::Handle::try_current().is_ok() {
            let (settings, session) = (self.settings.clone(), self.session.clone());
            let since = self.since;
            tokio::spawn(async move { move_on(&settings, &session, since).await });
        }
    }
}

/// Takes the session to a server that is known to have its majority. Requests that the left one may
/// still pass on are refused by the leader, which knows where a session has moved to.
async fn move_on(settings: &Settings, session: &Session, since: Instant) {
    let Ok(_one_at_a_time) = session.moving.try_lock() else { return };
    if session.has_served(since) {
        return;
    }
    let limit = session.lease() / 4;
    let serving = serving(settings, limit).await;
    // If all of them serve, so does ours: it is only slow, and a move would cost what is under way.
    let helps = !serving.is_empty() && serving.len() < settings.hosts.len();
    if !helps || session.is_over() || session.has_served(since) {
        return;
    }
    let (before, hosts) = (session.client(), serving.join(","));
    let next = tokio::time::timeout(limit, settings.take_over(&before, &hosts)).await;
    if let Ok(Ok(next)) = next {
        session.set_client(next);
    }
}

/// The servers that open a session now.
async fn serving(settings: &Settings, limit: Duration) -> Vec<String> {
    let probe = |host: String| async move { settings.serves(&host).await.then_some(host) };
    let mut probes: FuturesUnordered<_> = settings.addresses().into_iter().map(probe).collect();
    let (mut serving, mut end) = (Vec::new(), tokio::time::Instant::now() + limit);
    while let Ok(Some(found)) = tokio::time::timeout_at(end, probes.next()).await {
        if let Some(host) = found {
            serving.push(host);
            // One is enough to go on; the others have as long again to show that they serve too.
            end = end.min(tokio::time::Instant::now() + limit / 2);
        }
    }
    serving
}
