//! ZooKeeper, with Curator's layout: who uses Curator and who uses tenure exclude one another.
//!
//! `settings` reads the URL, `link` has the sessions and `moving` takes them to other servers,
//! `session` is one and what is known of the claims in it, `names` and `record` say what is where
//! in the tree. `queue` and `single` decide who holds, in one layout each; `release` also makes
//! good what failed, `watch` waits, `people` and `examine` tell. The user's page is
//! `docs/backends/zookeeper.md`.

mod examine;
mod fault;
mod link;
mod moving;
mod names;
mod people;
mod queue;
mod record;
mod release;
mod session;
mod settings;
mod single;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{Backend, Claim, Grant, Info, Mode, Order, Scope};
use crate::claim::{Attempt, Holding, LostReason};
use crate::error::{Error, ErrorKind, Result};
use crate::finding::Finding;
use crate::hosted::Hosted;
use crate::key::Key;
use crate::options::Options;
use crate::token::FencingToken;
use link::{Call, Link};
use session::{Place, Session, Spot};
use settings::{Layout, Settings};

/// Opens `zk://hosts/chroot`.
pub(crate) async fn open(options: Options) -> Result<Zookeeper> {
    let link = Arc::new(Link::open(Settings::take(options)?).await?);
    tokio::spawn(release::sweep(Arc::downgrade(&link)));
    Ok(Zookeeper { link })
}

/// Locks in ZooKeeper, which exclude those of Curator's `InterProcessMutex` on the same path.
///
/// Clones share one session. When the last is dropped, the session ends.
///
/// # Examples
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use std::time::Duration;
/// use tenure::backend::{Backend, Claim, Owner};
/// use tenure::{Attempt, Key, backends::Zookeeper};
///
/// let zookeeper = Zookeeper::open("zk://10.0.0.1,10.0.0.2,10.0.0.3/locks").await?;
/// let claim = Claim::new(Key::new("orders/42")?, Owner::random(), Duration::from_secs(30));
/// if let Attempt::Granted(grant) = zookeeper.try_acquire(&claim).await? {
///     println!("token {}", grant.token);
///     zookeeper.release(&claim).await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Zookeeper {
    link: Arc<Link>,
}

impl Zookeeper {
    /// Connects to the servers that a URL names: `zk://h1,h2,h3/chroot`.
    ///
    /// # Errors
    ///
    /// `Invalid` if the URL is wrong, `Unavailable` if no server answers, `Denied` if the login is
    /// refused.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future closes what was opened.
    pub async fn open(url: &str) -> Result<Hosted<Zookeeper>> {
        let options = Options::parse(url)?;
        Hosted::open(async move { open(options).await.map(Arc::new) }).await
    }

    /// The `check` to put into a ZooKeeper transaction of your own, so that it takes effect only if
    /// this grant is still held at that very moment: the strongest fence there is. `None` if it is
    /// not held now.
    ///
    /// For a guard of a client over this handle, or over a clone of it, the key is
    /// [`Guard::key`](crate::Guard::key), whatever prefix the client puts before it. For a grant of
    /// another process it is the whole key, with the prefix.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub async fn condition(&self, key: &Key, token: FencingToken) -> Result<Option<Condition>> {
        let session = self.living().await?;
        // The guard of a client with a prefix hides it.
        let whole = self.link.all().iter().find_map(|session| session.whole_key(key, token));
        let key = whole.as_ref().unwrap_or(key);
        self.link
            .bound(&session, Call::Look, people::condition(&session, self.layout(), key, token))
            .await
    }

    fn layout(&self) -> Layout {
        self.link.settings.layout
    }

    async fn living(&self) -> Result<Arc<Session>> {
        self.link.living().await
    }
}

impl Hosted<Zookeeper> {
    /// [`Zookeeper::condition`], asked for on the backend's own thread.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub async fn condition(&self, key: &Key, token: FencingToken) -> Result<Option<Condition>> {
        let key = key.clone();
        self.call(move |backend| async move { backend.condition(&key, token).await }).await
    }
}

/// What is true in ZooKeeper as long as a grant is held: this node is there, with this version.
///
/// # Examples
///
/// ```no_run
/// # use tenure::backends::Zookeeper;
/// # async fn example(zookeeper: Zookeeper, guard: tenure::Guard) -> tenure::Result<()> {
/// if let Some(condition) = zookeeper.condition(guard.key(), guard.token()).await? {
///     // With the client of your choice: multi([check(path, version), setData(…)]).
///     println!("{} {}", condition.path, condition.version);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Condition {
    /// The whole path of the holder's node, chroot included. No other grant ever has it.
    pub path: String,
    /// The version of its data.
    pub version: i32,
}

impl fmt::Debug for Zookeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.link.settings;
        write!(f, "zk://{}{}", settings.shown(), settings.tree.root())
    }
}

#[async_trait]
impl Backend for Zookeeper {
    fn info(&self) -> Info {
        let mut info = Info::new("zookeeper");
        // A crashed holder is kept for so long, whatever ttl it asked for.
        info.min_ttl = self.link.now().timeout();
        // A fixed lease has a session half as long again.
        info.freed_after = 2;
        if self.layout() == Layout::Ephemeral {
            info.order = Order::Any;
        }
        info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        if claim.mode != Mode::Exclusive {
            let message = "zookeeper locks are exclusive in this version";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let session = self.link.living_for(claim).await?;
        let call = async {
            match self.layout() {
                Layout::Queue => queue::take(&session, claim).await,
                Layout::Ephemeral => single::take(&session, claim).await,
            }
        };
        self.link.bound(&session, Call::Take, call).await
    }

    /// Opens no session: what is not held in those of now is not held at all.
    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        let mut answers: Vec<_> = claims.iter().map(|_| Ok(Duration::ZERO)).collect();
        let mut held: Vec<(Arc<Session>, Vec<_>)> = Vec::new();
        for (at, claim) in claims.iter().enumerate() {
            let session = self.link.of(claim);
            match standing(&session, claim) {
                Ok(place) => match held.iter_mut().find(|(of, _)| Arc::ptr_eq(of, &session)) {
                    Some((_, together)) => together.push((at, claim, place)),
                    None => held.push((session, vec![(at, claim, place)])),
                },
                Err(error) => answers[at] = Err(error),
            }
        }
        let batches = held.iter().flat_map(|(session, together)| {
            together.chunks(BATCH).map(|batch| self.renew_batch(session, batch))
        });
        let batches = futures_util::future::join_all(batches).await;
        let asked = held.iter().flat_map(|(_, together)| together);
        for ((at, ..), answer) in asked.zip(batches.into_iter().flatten()) {
            answers[*at] = answer;
        }
        answers
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.link.release(claim).await
    }

    /// Never carries a grant: after waiting, the next ask proves node and session before a
    /// majority.
    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        watch::until_free(&self.link.of(claim), self.layout(), claim).await;
        None
    }

    async fn until_lost(&self, claim: &Claim) {
        watch::until_lost(&self.link.of(claim), claim).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        let session = self.living().await?;
        self.link.bound(&session, Call::Look, people::list(&session, self.layout(), scope)).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        let session = self.living().await?;
        self.link
            .bound(&session, Call::Look, people::evict(&session, self.layout(), key, token))
            .await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        let session = self.living().await?;
        let examined = examine::examine(&self.link.settings, &session);
        self.link.bound(&session, Call::Look, examined).await
    }
}

impl Zookeeper {
    async fn renew_batch(
        &self,
        session: &Arc<Session>,
        batch: &[(usize, &Claim, Place)],
    ) -> Vec<Result<Duration>> {
        let claims: Vec<_> =
            batch.iter().map(|(_, claim, place)| (*claim, place.clone())).collect();
        let call = || async {
            let answers = match self.layout() {
                Layout::Queue => queue::renew(session, &claims).await,
                Layout::Ephemeral => single::renew(session, &claims).await,
            };
            match answers.first() {
                Some(Err(error)) if answers.iter().all(is_unanswered) => Err(error.clone()),
                _ => Ok(answers),
            }
        };
        let client = session.client();
        let mut answers = self.link.bound(session, Call::Renew, call()).await;
        // A proof changes nothing: it is asked for again where the session is now.
        if answers.is_err() && !Arc::ptr_eq(&client, &session.client()) {
            answers = self.link.bound(session, Call::Renew, call()).await;
        }
        let answers = answers.unwrap_or_else(|error| vec![Err(error); claims.len()]);
        // An answer that failed because the session ended is the server's word.
        let told = |answer: Result<Duration>| match answer {
            answer if is_unanswered(&answer) && session.is_over() => {
                Err(Error::gone(LostReason::SessionGone))
            }
            answer => answer,
        };
        answers.into_iter().map(told).collect()
    }
}

fn is_unanswered(answer: &Result<Duration>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable)
}

/// The place of a claim that is held as far as is known, by the grant that the renewal is about.
fn standing(session: &Session, claim: &Claim) -> Result<Place> {
    session.hear(claim);
    match session.spot(claim) {
        _ if session.is_over() => Err(Error::gone(LostReason::SessionGone)),
        Some(Spot::Held(place)) if claim.token.is_none_or(|token| token == place.token) => {
            Ok(place)
        }
        None if session.number > 0 => Err(Error::gone(LostReason::SessionGone)),
        None | Some(_) => Err(Error::new(ErrorKind::Lost, "the lock is not held")),
    }
}

/// The examples of the user's page are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../../docs/backends/zookeeper.md")]
struct Page;

/// How many claims are proven in one transaction, so that its size stays below the server's limit.
const BATCH: usize = 100;
