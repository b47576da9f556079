//! One session carries all locks of a client. When it is over, so is everything that hung on it,
//! and the next ask opens another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zookeeper_client::{Client, CreateMode, CreateOptions, MultiWriteError};

use super::fault;
use super::names::{self, Tree};
use super::settings::Settings;
use crate::backend::{Claim, Grant, Owner};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// The way to the server: the session of now, and how to open the next one.
pub(super) struct Link {
    pub(super) settings: Settings,
    session: Mutex<Arc<Session>>,
    opening: tokio::sync::Mutex<()>,
}

impl Link {
    pub(super) async fn open(settings: Settings) -> Result<Link> {
        let session = Arc::new(Session::open(&settings, 0).await?);
        Ok(Link { settings, session: Mutex::new(session), opening: Default::default() })
    }

    /// The session of now, also if it is over.
    pub(super) fn now(&self) -> Arc<Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A session that is not known to be over.
    pub(super) async fn living(&self) -> Result<Arc<Session>> {
        let session = self.now();
        if !session.is_over() {
            return Ok(session);
        }
        let _one_at_a_time = self.opening.lock().await;
        let session = self.now();
        if !session.is_over() {
            return Ok(session);
        }
        let next = Arc::new(Session::open(&self.settings, session.number + 1).await?);
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = next.clone();
        Ok(next)
    }

    /// How long the answer to a call may take.
    pub(super) fn limit(&self, call: Call) -> Duration {
        let lease = self.now().lease();
        let limit = match call {
            // A grant that comes later has too little of its lease left to be of use.
            Call::Take => lease * 2 / 3,
            // A hung one has to leave time for another.
            Call::Renew => lease / 3,
            Call::Release | Call::Look => MOST_PATIENCE,
        };
        limit.min(MOST_PATIENCE)
    }

    /// Makes a call that ends.
    pub(super) async fn bound<T>(
        &self,
        what: Call,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let limit = self.limit(what);
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer,
            Err(_) => Err(fault::silent(&self.settings.shown(), limit)),
        }
    }
}

/// What is asked of the server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Take,
    Renew,
    Release,
    /// For people.
    Look,
}

/// A session, and where the claims of it stand.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) tree: Tree,
    /// How many were before it.
    pub(super) number: u64,
    acls: zookeeper_client::Acls<'static>,
    spots: Mutex<HashMap<(Key, Owner), Entry>>,
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
    async fn open(settings: &Settings, number: u64) -> Result<Session> {
        Ok(Session {
            client: settings.connect().await?,
            tree: settings.tree.clone(),
            number,
            acls: settings.acls(),
            spots: Mutex::default(),
        })
    }

    /// Whether the server, or our own clock, ended it.
    pub(super) fn is_over(&self) -> bool {
        self.client.state().is_terminated()
    }

    /// For how long the server keeps our nodes without hearing from us.
    pub(super) fn timeout(&self) -> Duration {
        self.client.session_timeout()
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

    /// A grant by an answer of this session.
    pub(super) fn grant(&self, claim: &Claim, token: FencingToken) -> Grant {
        Grant::new(token, claim.ttl.min(self.lease()))
    }

    /// The first part of the names of a claim's nodes.
    pub(super) fn protected(&self, owner: Owner) -> String {
        names::protected(owner, self.client.session_id().0)
    }

    pub(super) fn options(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(self.acls)
    }

    pub(super) fn spot(&self, claim: &Claim) -> Option<Spot> {
        self.spots().get(&id(claim)).map(|entry| entry.spot.clone())
    }

    /// The core requests this claim, and it stands there now.
    pub(super) fn set(&self, claim: &Claim, spot: Spot) {
        let (claim, heard) = (claim.clone(), Clock::Boot.now());
        self.spots().insert(id(&claim), Entry { claim, spot, heard, leaving: None });
    }

    /// The core renews this claim.
    pub(super) fn hear(&self, claim: &Claim) {
        if let Some(entry) = self.spots().get_mut(&id(claim)) {
            entry.heard = Clock::Boot.now();
        }
    }

    /// The core releases this claim.
    pub(super) fn leaving(&self, claim: &Claim) {
        if let Some(entry) = self.spots().get_mut(&id(claim)) {
            entry.leaving = Some(Clock::Boot.now());
        }
    }

    /// The claims that only this session still knows of.
    pub(super) fn owed(&self) -> Vec<Claim> {
        let now = Clock::Boot.now();
        let spots = self.spots();
        let owed = spots.values().filter(|entry| entry.is_owed(now));
        owed.map(|entry| Claim { doubtful: true, ..entry.claim.clone() }).collect()
    }

    pub(super) fn forget(&self, claim: &Claim) {
        self.spots().remove(&id(claim));
    }

    /// Notes that the node ahead of a waiting claim is gone.
    pub(super) fn moved_up(&self, claim: &Claim, node: &str) {
        if let Some(entry) = self.spots().get_mut(&id(claim))
            && let Spot::Queued { ahead, .. } = &mut entry.spot
            && ahead.node == node
        {
            ahead.gone = true;
        }
    }

    fn spots(&self) -> MutexGuard<'_, HashMap<(Key, Owner), Entry>> {
        self.spots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Proves before a majority that all these nodes are there; `false` if one is not.
    ///
    /// Not a read: a follower that is cut off goes on answering reads, while the majority ends our
    /// session and hands the lock on.
    pub(super) async fn prove(&self, nodes: &[&str]) -> Result<bool> {
        let mut writer = self.client.new_multi_writer();
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
        self.client.mkdir(path, &options).await.map_err(fault::from_client)
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

/// The longest that one call may take.
const MOST_PATIENCE: Duration = Duration::from_secs(5);
