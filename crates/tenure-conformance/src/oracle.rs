//! The lease oracle: a layer that runs beside every case and compares what holders believe with
//! what the server keeps.
//!
//! Every backend of a [`TestContext`](crate::context::TestContext) is opened behind it, and all of
//! them share one [`Ledger`]. A grant, a confirmed renewal and a pushed grant are *beliefs*: this
//! owner holds this key with this token until that moment, counted as the engine counts it. The
//! ledger finds without any request: beliefs at the same time that exclude each other, and a token
//! that does not grow (that of a writer above all before it, that of a reader above all writers).
//! Some beliefs are read back over a connection of the oracle's own: the server has to keep the
//! same token, and for no shorter than the holder believes. That needs no second contender and no
//! luck: a fault shows while the lock is simply held.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tenure::backend::{Backend, Claim, Grant, Info, Mode, Owner, Scope};
use tenure::{Attempt, ErrorKind, FencingToken, Finding, Holding, Key};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How long a read-back may take at the end of a case.
const LONGEST_READ_BACK: Duration = Duration::from_secs(5);

/// Reads a key back over a connection that no case uses; `None` if there was no response.
pub type ReadBack = Box<dyn Fn(Key) -> BoxFuture<'static, Option<Vec<Holding>>> + Send + Sync>;

/// What all clients of one context believe, and what of it was found to be wrong.
pub struct Ledger {
    state: Mutex<State>,
    read_back: ReadBack,
    /// Where beliefs are read back: a client's own thread may end at any time.
    runtime: Handle,
    /// How much shorter than it is the server may show a lease, because it shows whole seconds.
    slack: Duration,
    /// Whether every belief is read back, and not only some.
    every: AtomicBool,
}

#[derive(Default)]
struct State {
    beliefs: HashMap<Key, HashMap<Owner, Belief>>,
    /// The highest tokens that were granted for a key.
    highest: HashMap<Key, Highest>,
    /// When the last request of a claim that got a response had been sent.
    confirmed: HashMap<Owner, Instant>,
    count: u64,
    read_backs: Vec<JoinHandle<()>>,
    wrong: Vec<String>,
}

/// The highest tokens of a key, with those that a grant reserves.
#[derive(Clone, Copy, Default)]
struct Highest {
    of_writers: u64,
    of_all: u64,
}

impl Highest {
    /// What the token of a later grant has to be above.
    fn floor(self, mode: Mode) -> u64 {
        match mode {
            Mode::Exclusive => self.of_all,
            Mode::Shared => self.of_writers,
            // Permits fence nothing.
            _ => 0,
        }
    }
}

#[derive(Clone, Copy)]
struct Belief {
    token: FencingToken,
    tokens: u32,
    mode: Mode,
    until: Instant,
}

impl Ledger {
    /// An empty one, to be made inside the runtime of the case.
    pub fn new(read_back: ReadBack, slack: Duration) -> Arc<Ledger> {
        let runtime = Handle::current();
        let every = AtomicBool::new(false);
        Arc::new(Ledger { state: Mutex::default(), read_back, runtime, slack, every })
    }

    /// Reads every belief back from now on.
    pub fn look_at_every_belief(&self) {
        self.every.store(true, Ordering::Relaxed);
    }

    /// What was found, when every read-back has ended.
    ///
    /// # Errors
    ///
    /// If a belief was wrong.
    pub async fn verdict(&self) -> Result<()> {
        let read_backs = std::mem::take(&mut self.state().read_backs);
        for read_back in read_backs {
            // One that hangs or was broken off has found nothing.
            let _none = tokio::time::timeout(LONGEST_READ_BACK, read_back).await;
        }
        let wrong = self.state().wrong.join("\n");
        ensure!(wrong.is_empty(), "the lease oracle says:\n{wrong}");
        Ok(())
    }

    /// How many beliefs there were.
    pub fn count(&self) -> u64 {
        self.state().count
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The highest token of the key that is known now.
    fn highest(&self, key: &Key) -> Highest {
        self.state().highest.get(key).copied().unwrap_or_default()
    }

    /// Other readers may hold from now on.
    fn downgrading(&self, claim: &Claim) {
        let mut state = self.state();
        let belief = state.beliefs.get_mut(&claim.key).and_then(|all| all.get_mut(&claim.owner));
        if let Some(belief) = belief {
            belief.mode = Mode::Shared;
        }
    }

    fn confirmed(&self, owner: Owner, sent: Instant) {
        self.state().confirmed.insert(owner, sent);
    }

    /// A grant: direct if `floor` is what was known before its request, pushed if there is none.
    fn granted(self: &Arc<Self>, claim: &Claim, belief: Belief, floor: Option<Highest>) {
        let mut state = self.state();
        state.settle(&claim.key);
        let beliefs = state.beliefs.entry(claim.key.clone()).or_default();
        let before = beliefs.get(&claim.owner).copied();
        let others = beliefs.iter().filter(|(owner, _)| **owner != claim.owner);
        let others: Vec<Belief> = others.map(|(_, belief)| *belief).collect();
        let belief = match before {
            // A late request of before a downgrade does not make it exclusive again.
            Some(before) if before.token == belief.token => {
                Belief { until: before.until.max(belief.until), ..before }
            }
            // The response to a downgrade, when the lock was released meanwhile.
            None if claim.token.is_some() => return,
            _ => belief,
        };
        beliefs.insert(claim.owner, belief);
        let (key, token) = (&claim.key, belief.token);
        let used: u64 = others.iter().map(|other| u64::from(other.mode.weight())).sum();
        let mode = belief.mode;
        if used + u64::from(mode.weight()) > u64::from(mode.limit())
            || others.iter().any(|other| other.token == token)
        {
            let seen: Vec<_> = others.iter().map(|o| (o.token, o.mode, o.until)).collect();
            state.wrong.push(format!(
                "too many holders of `{key}`: token {token} ({mode}) beside {seen:?}, at {:?}",
                Instant::now()
            ));
        }
        let repeated = before.is_some_and(|before| before.token == token);
        let floor = floor.map_or(0, |floor| floor.floor(mode));
        if !repeated && token.get() <= floor {
            state.wrong.push(format!("`{key}`: token {token} ({mode}) after {floor}"));
        }
        let last = token.get() + u64::from(belief.tokens) - 1;
        let highest = state.highest.entry(claim.key.clone()).or_default();
        highest.of_all = highest.of_all.max(last);
        if mode == Mode::Exclusive {
            highest.of_writers = highest.of_writers.max(last);
        }
        drop(state);
        self.read_back(claim);
    }

    fn renewed(self: &Arc<Self>, claim: &Claim, until: Instant) {
        let mut state = self.state();
        let belief = state.beliefs.get_mut(&claim.key).and_then(|all| all.get_mut(&claim.owner));
        let Some(belief) = belief else { return };
        belief.until = belief.until.max(until);
        drop(state);
        self.read_back(claim);
    }

    /// The claim believes nothing from now on.
    fn ended(&self, key: &Key, owner: Owner) {
        let mut state = self.state();
        state.confirmed.remove(&owner);
        if let Some(beliefs) = state.beliefs.get_mut(key) {
            beliefs.remove(&owner);
        }
    }

    /// The holder of this grant may rely on it until it is told of the eviction.
    fn evicted(&self, key: &Key, token: FencingToken) {
        if let Some(beliefs) = self.state().beliefs.get_mut(key) {
            beliefs.retain(|_, belief| belief.token != token);
        }
    }

    fn belief(&self, key: &Key, owner: Owner) -> Option<Belief> {
        self.state().beliefs.get(key)?.get(&owner).copied()
    }

    /// Reads some of the beliefs back: the first ones, and then one in sixteen.
    fn read_back(self: &Arc<Self>, claim: &Claim) {
        let mut state = self.state();
        state.count += 1;
        let every = self.every.load(Ordering::Relaxed);
        if !every && state.count > 8 && !state.count.is_multiple_of(16) {
            return;
        }
        let (ledger, key, owner) = (self.clone(), claim.key.clone(), claim.owner);
        state.read_backs.retain(|read_back| !read_back.is_finished());
        state.read_backs.push(self.runtime.spawn(async move { ledger.compare(key, owner).await }));
    }

    /// The comparison. Sound without slack: the belief is read before the read-back, must
    /// still stand after it, and the end that the server shows is counted from after it.
    async fn compare(&self, key: Key, owner: Owner) {
        let Some(before) = self.belief(&key, owner) else { return };
        let Some(holdings) = (self.read_back)(key.clone()).await else { return };
        let now = Instant::now();
        let Some(after) = self.belief(&key, owner) else { return };
        if after.token != before.token || now >= before.until {
            return;
        }
        let Belief { token, until, .. } = before;
        let left = until - now;
        let holders = || holdings.iter().flat_map(|holding| &holding.holders);
        let own = holders().find(|holder| holder.token == Some(token));
        let wrong = match own.or_else(|| holders().next()) {
            None => format!("`{key}`: the server has no holder; token {token} has {left:?} left"),
            Some(holder) => match (holder.token, holder.ttl_left) {
                (None, _) => return,
                (Some(seen), Some(kept)) if seen == token && now + kept + self.slack < until => {
                    let short = until - (now + kept);
                    format!("`{key}`: the lease of token {token} ends {short:?} too early")
                }
                (Some(seen), _) if seen == token => return,
                (Some(seen), _) => {
                    format!("`{key}`: {seen} holds, and token {token} has {left:?} left")
                }
            },
        };
        self.state().wrong.push(wrong);
    }
}

impl Belief {
    fn new(claim: &Claim, grant: &Grant, sent: Instant) -> Belief {
        let Grant { token, tokens, .. } = *grant;
        Belief { token, tokens, mode: claim.mode, until: sent + grant.ttl }
    }
}

impl State {
    /// Forgets beliefs whose end has come.
    fn settle(&mut self, key: &Key) {
        let now = Instant::now();
        if let Some(beliefs) = self.beliefs.get_mut(key) {
            beliefs.retain(|_, belief| belief.until > now);
        }
    }
}

/// A backend whose grants and renewals are written down.
#[derive(Debug)]
pub struct Oracle<B> {
    inner: B,
    ledger: Arc<Ledger>,
}

impl<B: Backend> Oracle<B> {
    /// That backend, watched.
    pub fn new(inner: B, ledger: Arc<Ledger>) -> Oracle<B> {
        Oracle { inner, ledger }
    }
}

#[async_trait]
impl<B: Backend> Backend for Oracle<B> {
    fn info(&self) -> Info {
        self.inner.info()
    }

    async fn try_acquire(&self, claim: &Claim) -> tenure::Result<Attempt<Grant>> {
        // A request that is under way can end what the last one believed only by a grant.
        let floor = self.ledger.highest(&claim.key);
        if claim.token.is_some() {
            self.ledger.downgrading(claim);
        }
        let sent = Instant::now();
        let attempt = self.inner.try_acquire(claim).await?;
        self.ledger.confirmed(claim.owner, sent);
        if let Attempt::Granted(grant) = &attempt {
            let belief = Belief::new(claim, grant, sent);
            self.ledger.granted(claim, belief, Some(floor));
        }
        Ok(attempt)
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<tenure::Result<Duration>> {
        let sent = Instant::now();
        let responses = self.inner.renew(claims).await;
        for (claim, response) in claims.iter().zip(&responses) {
            match response {
                Ok(ttl) => self.ledger.renewed(claim, sent + *ttl),
                Err(error) if error.kind() == ErrorKind::Lost => {
                    self.ledger.ended(&claim.key, claim.owner);
                }
                Err(_) => {}
            }
        }
        responses
    }

    async fn release(&self, claim: &Claim) -> tenure::Result<bool> {
        self.ledger.ended(&claim.key, claim.owner);
        self.inner.release(claim).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        let grant = self.inner.until_free(claim).await?;
        let confirmed = self.ledger.state().confirmed.get(&claim.owner).copied();
        if let Some(sent) = confirmed {
            self.ledger.granted(claim, Belief::new(claim, &grant, sent), None);
        }
        Some(grant)
    }

    async fn until_lost(&self, claim: &Claim) {
        self.inner.until_lost(claim).await;
    }

    async fn list(&self, scope: Scope<'_>) -> tenure::Result<Vec<Holding>> {
        self.inner.list(scope).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> tenure::Result<bool> {
        self.ledger.evicted(key, token);
        self.inner.evict(key, token).await
    }

    async fn doctor(&self) -> tenure::Result<Vec<Finding>> {
        self.inner.doctor().await
    }
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ledger({} beliefs)", self.count())
    }
}
