//! Waiting: one task per client looks for all of its waiters, when the bell rings and from time to
//! time. It runs only while somebody waits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::bell::Bell;
use super::lease::{LOOK, Lease};
use super::link::Recipe;
use super::state::Seen;
use crate::backend::{Claim, Grant};
use crate::error::Result;
use crate::key::Key;

/// Who waits for what, in one client.
#[derive(Debug)]
pub(super) struct Waits {
    desk: Mutex<Desk>,
    /// Somebody rang: look now.
    rung: Arc<Notify>,
    /// There is another wish.
    changed: Notify,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Desk {
    wishes: HashMap<u64, Wish>,
    last: u64,
    running: bool,
}

#[derive(Debug)]
struct Wish {
    key: Key,
    owner: String,
    claim: Claim,
    end: End,
    reply: oneshot::Sender<Option<Grant>>,
}

/// What a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// That it may be worth asking.
    Free,
    /// That the claim is no longer held.
    Lost,
}

/// How a client looks.
#[derive(Clone)]
pub(super) struct Ways {
    pub(super) lease: Arc<Lease>,
    /// How to open the bell; none to look without one.
    pub(super) bell: Option<Recipe>,
    pub(super) runtime: tokio::runtime::Handle,
}

impl Waits {
    pub(super) fn new() -> Arc<Waits> {
        let closed = AtomicBool::new(false);
        let (rung, changed) = (Arc::default(), Notify::new());
        Arc::new(Waits { desk: Mutex::default(), rung, changed, closed })
    }

    /// Returns when the wish has come true, perhaps with the grant.
    pub(super) async fn until(
        self: &Arc<Self>,
        ways: &Ways,
        claim: &Claim,
        end: End,
    ) -> Option<Grant> {
        let (reply, answer) = oneshot::channel();
        let (key, owner) = (claim.key.clone(), claim.owner.to_string());
        let wish = Wish { key, owner, claim: claim.clone(), end, reply };
        let _forget = self.add(ways, wish);
        match answer.await {
            Ok(pushed) => pushed,
            // The task has ended with its runtime.
            Err(_) => std::future::pending().await,
        }
    }

    /// Look now.
    pub(super) fn ring(&self) {
        self.rung.notify_one();
    }

    /// Nobody will wait any more.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.ring();
    }

    fn add(self: &Arc<Self>, ways: &Ways, wish: Wish) -> Forget {
        let mut desk = self.desk();
        desk.last += 1;
        let number = desk.last;
        desk.wishes.insert(number, wish);
        if !std::mem::replace(&mut desk.running, true) {
            ways.runtime.spawn(run(self.clone(), ways.clone()));
        }
        drop(desk);
        self.changed.notify_one();
        Forget(self.clone(), number)
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a wish off the desk.
struct Forget(Arc<Waits>, u64);

impl Drop for Forget {
    fn drop(&mut self) {
        self.0.desk().wishes.remove(&self.1);
    }
}

/// The task: looks, answers, and sleeps until the next reason to look.
async fn run(waits: Arc<Waits>, ways: Ways) {
    let mut bell: Option<Bell> = None;
    let mut pace = Pace::new(ways.bell.is_some());
    let mut idle_since = Instant::now();
    // When the first lease ends that is waited for: nobody rings then.
    let mut expiry = IDLE;
    loop {
        let keys = waits.keys();
        if !keys.is_empty() {
            idle_since = Instant::now();
        } else if waits.rest(idle_since) {
            return;
        }
        if let (None, Some(recipe), false) = (&bell, &ways.bell, keys.is_empty()) {
            let (name, main) = (&ways.lease.bell, ways.lease.main().clone());
            let (recipe, rung) = (recipe.clone(), waits.rung.clone());
            bell = Some(Bell::start(name, recipe, main, rung, &ways.runtime));
        }
        let pause = match keys.is_empty() {
            true => IDLE,
            false => pace.next(waits.ahead(&ways.lease)).min(expiry),
        };
        tokio::select! {
            () = waits.rung.notified() => pace.begin(),
            () = tokio::time::sleep(pause) => {}
            // A bell that is up hears of everything that happened since the claim was asked for;
            // and the core asks again when the lease ends that it was told of.
            () = waits.changed.notified() => {
                pace.begin();
                if bell.as_ref().is_some_and(Bell::is_up) {
                    continue;
                }
            }
        }
        let snapshot = waits.snapshot();
        if !snapshot.keys.is_empty() {
            // No answer: look again later.
            expiry = waits.look(&ways, &snapshot).await.unwrap_or(IDLE);
        }
    }
}

/// What there was to look at when a look began.
struct Snapshot {
    /// The keys, each once.
    keys: Vec<Key>,
    /// The number of the youngest wish.
    last: u64,
}

impl Waits {
    fn snapshot(&self) -> Snapshot {
        let desk = self.desk();
        let mut keys: Vec<_> = desk.wishes.values().map(|wish| wish.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        Snapshot { keys, last: desk.last }
    }

    /// The keys to look at, each once.
    fn keys(&self) -> Vec<Key> {
        self.snapshot().keys
    }

    /// How many are before the first of our waiters, as far as is known.
    fn ahead(&self, lease: &Lease) -> u32 {
        let desk = self.desk();
        desk.wishes.values().map(|wish| lease.ahead(wish.claim.owner)).min().unwrap_or(0)
    }

    /// Whether the task is to end: nobody waits, and nobody has for a while.
    fn rest(&self, idle_since: Instant) -> bool {
        let mut desk = self.desk();
        let closed = self.closed.load(Ordering::SeqCst);
        // Under the lock, so that a wish made now starts a new task.
        if desk.wishes.is_empty() && (closed || idle_since.elapsed() >= IDLE) {
            desk.running = false;
        }
        !desk.running
    }

    /// Looks at the keys and answers. Says when the first lease ends that is waited for.
    async fn look(&self, ways: &Ways, snapshot: &Snapshot) -> Result<Duration> {
        let sql = ways.lease.book.look(snapshot.keys.iter());
        let answer = ways.lease.main().ask(sql, LOOK).await?;
        let rows = answer.sets.first().map(Vec::as_slice).unwrap_or_default();
        let seen = rows.iter().map(Seen::read).collect::<Result<Vec<_>>>()?;
        Ok(self.settle(&ways.lease, snapshot, &seen))
    }

    /// Answers the wishes that were there before the look began.
    ///
    /// A response may be late: since the look a grant can have run out, another client can have got
    /// the key, and the claim can have been told so by another connection. The wish that it makes
    /// after that response has a higher number than any wish of the look, so a late look cannot
    /// make the old grant its own. What a look shows that began after the wish is newer than every
    /// response that the claim has had.
    fn settle(&self, lease: &Lease, snapshot: &Snapshot, seen: &[Seen]) -> Duration {
        let seen: HashMap<&[u8], &Seen> = seen.iter().map(|seen| (&*seen.key, seen)).collect();
        let mut soonest = IDLE;
        let mut desk = self.desk();
        let numbers: Vec<u64> = desk.wishes.keys().copied().collect();
        for number in numbers.into_iter().filter(|number| *number <= snapshot.last) {
            let Some(wish) = desk.wishes.get(&number) else { continue };
            let seen = seen.get(wish.key.as_str().as_bytes()).copied();
            let Some(pushed) = wish.is_true(seen, lease) else {
                soonest = soonest.min(seen.map_or(IDLE, |seen| seen.look_in));
                continue;
            };
            if let Some(wish) = desk.wishes.remove(&number) {
                // Whoever waited may have gone; a grant then shows at its next ask.
                let _gone = wish.reply.send(pushed);
            }
        }
        soonest
    }
}

impl Wish {
    /// Whether it has come true, and if so with which grant.
    fn is_true(&self, seen: Option<&Seen>, lease: &Lease) -> Option<Option<Grant>> {
        let seen = seen.filter(|seen| !seen.over);
        // Where looks and asks reach different servers, as during a failover, a look may show the
        // past: a grant that is not above every token that the claim was shown is over.
        let shown = if self.end == End::Free { lease.shown(self.claim.owner) } else { 0 };
        let mine = seen.filter(|seen| seen.owner == self.owner);
        let mine = mine.filter(|seen| seen.token.is_some_and(|token| token.get() > shown));
        match (self.end, seen, mine) {
            (End::Free, _, Some(mine)) => {
                lease.is_held(&self.key, self.claim.owner, mine.queued);
                // The lease is the place's: it counts from the last ask.
                Some(mine.token.map(|token| Grant::new(token, self.claim.ttl)))
            }
            (End::Free, Some(_), None) | (End::Lost, _, Some(_)) => None,
            (End::Free, None, _) | (End::Lost, _, None) => Some(None),
        }
    }
}

/// How often to look while nobody rings: soon at first, then less and less, never in step with
/// others.
struct Pace {
    first: Duration,
    most: Duration,
    now: Duration,
    seed: u64,
}

impl Pace {
    fn new(bell: bool) -> Pace {
        let (first, most) = if bell { (LOST_RING, BELL_MOST) } else { (POLL_FIRST, POLL_MOST) };
        let seed = u64::from_le_bytes(
            uuid::Uuid::new_v4().to_bytes_le()[..8].try_into().unwrap_or_default(),
        );
        Pace { first, most, now: first, seed: seed | 1 }
    }

    fn begin(&mut self) {
        self.now = self.first;
    }

    /// Between three and five quarters of the pause. It is longer for who is not the first: only
    /// the head of a queue looks often.
    fn next(&mut self, ahead: u32) -> Duration {
        let pause = self.now.saturating_mul(ahead.saturating_add(1)).min(self.most);
        self.now = (self.now * 3 / 2).min(self.most);
        // Xorshift: enough to keep clients out of step.
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        pause * 3 / 4 + pause * u32::try_from(self.seed % 512).unwrap_or(0) / 1024
    }
}

/// How long the bell stays up when nobody waits.
const IDLE: Duration = Duration::from_secs(15);
/// A ring between two statements of the bell is not heard: the first look after it makes up for it.
const LOST_RING: Duration = Duration::from_millis(20);
const BELL_MOST: Duration = Duration::from_secs(1);
const POLL_FIRST: Duration = Duration::from_millis(10);
const POLL_MOST: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::super::book::Book;
    use super::super::link::Link;
    use super::super::options::Kind;
    use super::*;
    use crate::backend::Owner;
    use crate::token::FencingToken;

    fn lease() -> Lease {
        let era = Arc::default();
        let recipe = Recipe { opts: Default::default(), own: false, home: "", era };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let link = Link::start(recipe, runtime.handle());
        Lease::new(Book::new(Kind::Lease), link.clone(), vec![link], String::new())
    }

    fn wish(waits: &Waits, claim: &Claim) -> oneshot::Receiver<Option<Grant>> {
        let (reply, answer) = oneshot::channel();
        let (key, owner) = (claim.key.clone(), claim.owner.to_string());
        let mut desk = waits.desk();
        desk.last += 1;
        let number = desk.last;
        let wish = Wish { key, owner, claim: claim.clone(), end: End::Free, reply };
        desk.wishes.insert(number, wish);
        answer
    }

    /// That the claim holds with this token.
    fn seen(claim: &Claim, token: u64) -> Seen {
        Seen {
            key: claim.key.as_str().as_bytes().to_vec(),
            owner: claim.owner.to_string(),
            token: FencingToken::new(token),
            look_in: IDLE,
            held_for: Duration::ZERO,
            over: false,
            queued: 0,
        }
    }

    /// As from a former primary, which is behind the one that requests go to.
    #[test]
    fn a_look_at_the_past_gives_no_grant() {
        let (waits, lease) = (Waits::new(), lease());
        let claim = Claim::new(Key::new("k").unwrap(), Owner::random(), Duration::from_secs(2));
        lease.is_queued(claim.owner, 0, 8);
        lease.is_queued(claim.owner, 0, 7);
        let mut answer = wish(&waits, &claim);
        for token in [6, 8] {
            waits.settle(&lease, &waits.snapshot(), &[seen(&claim, token)]);
            assert!(answer.try_recv().is_err(), "token {token} was believed after 8 was shown");
        }
        waits.settle(&lease, &waits.snapshot(), &[seen(&claim, 9)]);
        assert!(matches!(answer.try_recv(), Ok(Some(_))));
    }

    #[test]
    fn a_late_look_gives_its_grant_to_no_later_wish() {
        let (waits, lease) = (Waits::new(), lease());
        let key = Key::new("k").unwrap();
        let claim = Claim::new(key.clone(), Owner::random(), Duration::from_secs(2));
        let shown = [seen(&claim, 6)];
        let early = wish(&waits, &claim);
        let late_look = waits.snapshot();
        // It is dropped, the claim is told that another client has a later grant, and waits again.
        drop(early);
        waits.desk().wishes.clear();
        let mut after = wish(&waits, &claim);
        waits.settle(&lease, &late_look, &shown);
        assert!(after.try_recv().is_err(), "the old grant was believed");
        // A look that began after the wish is newer than every response before it.
        waits.settle(&lease, &waits.snapshot(), &shown);
        assert!(matches!(after.try_recv(), Ok(Some(_))));
    }
}
