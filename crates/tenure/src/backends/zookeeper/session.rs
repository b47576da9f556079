//! A session, and where the claims stand that hang on it. When it is over, so are they.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use zookeeper_client::{Client, CreateMode, CreateOptions, MultiWriteError};

use super::fault;
use super::names::{self, Tree};
use super::settings::Settings;
use crate::backend::{Claim, Grant, Owner};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// A session, and where the claims of it stand.
pub(super) struct Session {
    client: Mutex<Arc<Client>>,
    /// Held while it moves to another server, and told when it has.
    pub(super) moving: tokio::sync::Mutex<()>,
    moved: Notify,
    /// When its server last answered what needs a majority.
    served: Mutex<Instant>,
    settings: Settings,
    pub(super) tree: Tree,
    /// How many were before it.
    pub(super) number: u64,
    acls: zookeeper_client::Acls<'static>,
    claims: Mutex<Claims>,
}

#[derive(Debug)]
struct Claims {
    entries: HashMap<(Key, Owner), Entry>,
    /// When there was last something to do for them.
    used: Moment,
}

/// A claim that may have a node, from before its first request until its release is confirmed.
#[derive(Debug)]
struct Entry {
    claim: Claim,
    spot: Spot,
    /// When the core last requested or renewed it.
    heard: Moment,
    /// When the core last tried to release it, if it did.
    leaving: Option<Moment>,
}

impl Entry {
    /// Whether the claim is over for the core, which has stopped to release it as well: its release
    /// failed, or it was forgotten. The session lives on by the library's pings, so that its node
    /// would stay for as long as the process does.
    fn is_owed(&self, now: Moment) -> bool {
        let ttl = self.claim.ttl;
        now >= self.heard + ttl * 2 || self.leaving.is_some_and(|last| now >= last + ttl)
    }
}

/// Where a claim stands, as far as the server has told.
#[derive(Clone, Debug)]
pub(super) enum Spot {
    /// A request was sent; its answer did not come yet, or never.
    Asked,
    /// Its node waits behind another.
    Queued { place: Place, ahead: Ahead },
    /// It was first.
    Held(Place),
}

/// The node of a claim, and the token that it stands for.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) node: String,
    pub(super) token: FencingToken,
}

/// The node just before ours.
#[derive(Clone, Debug)]
pub(super) struct Ahead {
    pub(super) node: String,
    /// Whether it holds, so that we are next.
    pub(super) holds: bool,
    /// Whether the server told that it is gone.
    pub(super) gone: bool,
}

impl Session {
    pub(super) async fn open(
        settings: &Settings,
        timeout: Duration,
        number: u64,
    ) -> Result<Session> {
        let claims = Claims { entries: HashMap::new(), used: Clock::Boot.now() };
        Ok(Session {
            client: Mutex::new(Arc::new(settings.connect(timeout).await?)),
            moving: tokio::sync::Mutex::default(),
            moved: Notify::new(),
            served: Mutex::new(Instant::now()),
            settings: settings.clone(),
            tree: settings.tree.clone(),
            number,
            acls: settings.acls(),
            claims: Mutex::new(claims),
        })
    }

    /// The connection of now. What has to be sent in one order is sent over one of them.
    pub(super) fn client(&self) -> Arc<Client> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Goes on over another connection in the same session. Watches of the one before are not
    /// waited for any more.
    pub(super) fn set_client(&self, client: Client) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(client);
        self.moved.notify_waiters();
    }

    /// Its server has answered what needs a majority.
    pub(super) fn serves(&self) {
        *self.served.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Whether it has done so since then.
    pub(super) fn has_served(&self, since: Instant) -> bool {
        *self.served.lock().unwrap_or_else(PoisonError::into_inner) > since
    }

    /// Returns when this is no longer the connection of now.
    pub(super) async fn until_moved(&self, from: &Arc<Client>) {
        let mut moved = std::pin::pin!(self.moved.notified());
        moved.as_mut().enable();
        if Arc::ptr_eq(from, &self.client()) {
            moved.await;
        }
    }

    /// Whether the server, or our own clock, ended it.
    pub(super) fn is_over(&self) -> bool {
        self.client().state().is_terminated()
    }

    /// For how long the server keeps our nodes without hearing from us.
    pub(super) fn timeout(&self) -> Duration {
        self.client().session_timeout()
    }

    /// For how long an answer proves that we hold, from before its request.
    ///
    /// A follower tells the leader only now and then which sessions it heard from: what the leader
    /// knows may be as old as our last message but one, or a tick. The client sends one at least
    /// every fifth of the timeout, and the tick of a server is a third of it or less. So the rest
    /// is ours even if the follower is cut off right after its answer.
    pub(super) fn lease(&self) -> Duration {
        self.timeout() * 2 / 3
    }

    /// The shortest timeout with such a lease, in whole milliseconds.
    pub(super) fn timeout_of(lease: Duration) -> Duration {
        let millis = (lease * 3).as_nanos().div_ceil(2_000_000);
        Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
    }

    /// A grant by an answer of this session.
    pub(super) fn grant(&self, claim: &Claim, token: FencingToken) -> Grant {
        Grant::new(token, claim.ttl.min(self.lease()))
    }

    /// The first part of the names of a claim's nodes.
    pub(super) fn protected(&self, owner: Owner) -> String {
        names::protected(owner, self.client().session_id().0)
    }

    pub(super) fn options(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(self.acls)
    }

    pub(super) fn spot(&self, claim: &Claim) -> Option<Spot> {
        self.claims().entries.get(&id(claim)).map(|entry| entry.spot.clone())
    }

    /// The core requests this claim, and it stands there now.
    pub(super) fn set(&self, claim: &Claim, spot: Spot) {
        let (claim, heard) = (claim.clone(), Clock::Boot.now());
        let mut claims = self.claims();
        claims.used = heard;
        claims.entries.insert(id(&claim), Entry { claim, spot, heard, leaving: None });
    }

    /// The core renews this claim.
    pub(super) fn hear(&self, claim: &Claim) {
        if let Some(entry) = self.claims().entries.get_mut(&id(claim)) {
            entry.heard = Clock::Boot.now();
        }
    }

    /// The core releases this claim.
    pub(super) fn leaving(&self, claim: &Claim) {
        if let Some(entry) = self.claims().entries.get_mut(&id(claim)) {
            entry.leaving = Some(Clock::Boot.now());
        }
    }

    /// The claims that only this session still knows of.
    pub(super) fn owed(&self) -> Vec<Claim> {
        let now = Clock::Boot.now();
        let claims = self.claims();
        let owed = claims.entries.values().filter(|entry| entry.is_owed(now));
        owed.map(|entry| Claim { doubtful: true, ..entry.claim.clone() }).collect()
    }

    pub(super) fn forget(&self, claim: &Claim) {
        let mut claims = self.claims();
        claims.used = Clock::Boot.now();
        claims.entries.remove(&id(claim));
    }

    /// Whether nothing hangs on it, for this long.
    pub(super) fn is_idle(&self, long: Duration) -> bool {
        let claims = self.claims();
        claims.entries.is_empty() && Clock::Boot.now() >= claims.used + long
    }

    /// The whole key of a grant of this session whose key ends so.
    pub(super) fn whole_key(&self, key: &Key, token: FencingToken) -> Option<Key> {
        let claims = self.claims();
        let found = claims.entries.values().find(|entry| {
            let held = matches!(&entry.spot, Spot::Held(place) if place.token == token);
            held && entry.claim.key.as_str().ends_with(key.as_str())
        });
        found.map(|entry| entry.claim.key.clone())
    }

    /// Notes that the node ahead of a waiting claim is gone.
    pub(super) fn moved_up(&self, claim: &Claim, node: &str) {
        if let Some(entry) = self.claims().entries.get_mut(&id(claim))
            && let Spot::Queued { ahead, .. } = &mut entry.spot
            && ahead.node == node
        {
            ahead.gone = true;
        }
    }

    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Proves before a majority that all these nodes are there; `false` if one is not.
    ///
    /// Not a read: a follower that is cut off goes on answering reads, while the majority ends our
    /// session and hands the lock on.
    pub(super) async fn prove(&self, client: &Client, nodes: &[&str]) -> Result<bool> {
        let mut writer = client.new_multi_writer();
        for node in nodes {
            writer.add_check_version(node, -1).map_err(fault::from_client)?;
        }
        match writer.commit().await {
            Ok(_) => Ok(true),
            Err(MultiWriteError::OperationFailed { .. }) => Ok(false),
            Err(MultiWriteError::RequestFailed { source }) => Err(fault::from_client(source)),
        }
    }

    /// Makes a container and what is missing above it.
    pub(super) async fn make_container(&self, path: &str) -> Result<()> {
        let options = self.options(CreateMode::Container);
        self.client().mkdir(path, &options).await.map_err(fault::from_client)
    }
}

impl Drop for Session {
    /// Ends the session at the server, if there is a runtime to do it on. Else it ends by itself.
    fn drop(&mut self) {
        if let (false, Ok(runtime)) = (self.is_over(), tokio::runtime::Handle::try_current()) {
            let (settings, client) = (self.settings.clone(), self.client());
            runtime.spawn(async move { settings.close(&client).await });
        }
    }
}

fn id(claim: &Claim) -> (Key, Owner) {
    (claim.key.clone(), claim.owner)
}

/// The token that a node stands for: the transaction that created it.
pub(super) fn token(czxid: i64) -> Result<FencingToken> {
    let token = u64::try_from(czxid).ok().and_then(FencingToken::new);
    token.ok_or_else(|| {
        let message = format!("zookeeper gave the transaction id {czxid}; is it older than 3.5?");
        Error::new(crate::ErrorKind::Internal, message)
    })
}
