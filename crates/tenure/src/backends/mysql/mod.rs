//! MySQL and MariaDB, in three modes: leases in a table, named locks of a connection, row locks of
//! a transaction.
//!
//! `options` reads the URL, `link` keeps one connection, `schema` makes the tables; `book` has the
//! statements, made of `literals`, and `lease` the verbs on them; `session` and `row` add the
//! server's own locks; `wait` and `bell` wake who waits, `sweep` removes what is old, `examine`
//! looks at the server. The user's page is `docs/backends/mysql.md`.

mod bell;
mod book;
mod examine;
mod fault;
mod lease;
mod link;
mod literals;
mod options;
mod row;
mod schema;
mod session;
mod state;
mod sweep;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use crate::backend::{Backend, Claim, Grant, Info, Scope, Wakeup};
use crate::claim::{Attempt, Busy, Holding};
use crate::error::Result;
use crate::finding::Finding;
use crate::hosted::Hosted;
use crate::key::Key;
use crate::options::Options;
use crate::token::FencingToken;
use book::Book;
use lease::{Lease, Ring};
use link::{Link, Recipe};
use options::{Kind, Settings};
use row::Rows;
use session::Session;
use wait::{End, Waits, Ways};

pub use schema::SCHEMA;

/// Opens `mysql://user:password@host:port/database`.
pub(crate) async fn open(options: Options) -> Result<Mysql> {
    let settings = Settings::take(options)?;
    let runtime = tokio::runtime::Handle::current();
    let own = settings.kind != Kind::Lease;
    let recipe = Recipe { opts: settings.opts.clone(), own, home: "", era: Arc::default() };
    let count = if own { 1 } else { settings.connections };
    let main = Link::start(recipe.clone(), &runtime);
    let links = (0..count).map(|_| Link::start(recipe.clone(), &runtime)).collect();
    let bell = Uuid::new_v4().simple().to_string();
    let lease = Arc::new(Lease::new(Book::new(settings.kind), main, links, bell));
    schema::prepare(lease.main(), settings.kind).await?;
    if let Some(every) = settings.sweep {
        runtime.spawn(sweep::run(Arc::downgrade(&lease), settings.kind, every));
    }
    let native = match settings.kind {
        Kind::Lease => Native::None,
        Kind::Session => Native::Session(Session::default()),
        Kind::Row => Native::Row(Rows::new(&recipe, runtime.clone(), settings.connections)),
    };
    let bell = settings.bell.then_some(recipe);
    let ways = Ways { lease, bell, runtime };
    let (kind, shown) = (settings.kind, settings.shown);
    Ok(Mysql { opened: Arc::new(Opened { ways, native, waits: Waits::new(), kind, shown }) })
}

/// Locks in MySQL or MariaDB. Clones share their connections.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> tenure::Result<()> {
/// use std::time::Duration;
/// use tenure::backend::{Backend, Claim, Owner};
/// use tenure::{Attempt, Key, backends::Mysql};
///
/// let mysql = Mysql::open("mysql://app:secret@db.example/app").await?;
/// let claim = Claim::new(Key::new("orders/42")?, Owner::random(), Duration::from_secs(30));
/// if let Attempt::Granted(grant) = mysql.try_acquire(&claim).await? {
///     println!("token {}", grant.token);
///     mysql.release(&claim).await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mysql {
    opened: Arc<Opened>,
}

struct Opened {
    ways: Ways,
    native: Native,
    waits: Arc<Waits>,
    kind: Kind,
    shown: String,
}

/// Whose turn it is.
enum Turn {
    /// That of the claim; the server's own lock is still to be taken.
    Here(FencingToken),
    /// Somebody else's.
    Others(Busy),
}

/// What became of going for the server's own lock.
enum Taken {
    /// The claim has it.
    Granted(FencingToken),
    /// The claim has had the turn for so long, and another has not let go of the lock yet: a holder
    /// that was evicted, or a foreign client.
    Blocked(Duration),
    /// The turn was over before.
    NotOurTurn,
}

impl Taken {
    /// Another claim of this client has it, and will learn soon that its turn is over.
    fn by_sibling() -> Taken {
        Taken::Blocked(SIBLING)
    }
}

/// What holds the lock beside the tables.
#[derive(Debug)]
enum Native {
    None,
    Session(Session),
    Row(Rows),
}

impl Mysql {
    /// Opens the server that a URL names: `mysql://user:password@host:port/database?mode=lease`.
    ///
    /// # Errors
    ///
    /// `Invalid` if the URL is wrong, `Denied` if the login or a right is missing, `Unsupported` if
    /// a proxy shares connections in a mode that needs its own, `Unavailable` without an answer.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future closes what was opened.
    pub async fn open(url: &str) -> Result<Hosted<Mysql>> {
        let options = Options::parse(url)?;
        Hosted::open(async move { open(options).await.map(Arc::new) }).await
    }

    fn lease(&self) -> &Lease {
        &self.opened.ways.lease
    }

    fn wake(&self, ring: &Ring) {
        if self.lease().wake(ring) {
            self.opened.waits.ring();
        }
    }

    /// Finds out whether it is a claim's turn: by the short way if the key may be free.
    async fn take_turn(&self, claim: &Claim) -> Result<Turn> {
        if self.lease().may_be_free(claim)
            && let Some(token) = self.lease().take_free(claim).await?
        {
            return Ok(Turn::Here(token));
        }
        let (attempt, ring) = self.lease().take(claim).await?;
        self.wake(&ring);
        Ok(match attempt {
            Attempt::Granted(token) => Turn::Here(token),
            Attempt::Busy(busy) => Turn::Others(busy),
        })
    }

    /// Takes the server's own lock for a claim whose turn it is.
    async fn take_native(&self, claim: &Claim, token: FencingToken) -> Result<Taken> {
        match &self.opened.native {
            Native::None => Ok(Taken::Granted(token)),
            Native::Session(session) => session.take(self.lease(), claim).await,
            Native::Row(rows) => rows.take(self.lease(), claim, token).await,
        }
    }
}

/// Ends the waiting task, and with it the bell.
impl Drop for Opened {
    fn drop(&mut self) {
        self.waits.close();
    }
}

impl fmt::Debug for Mysql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mysql://{} ({:?})", self.opened.shown, self.opened.kind)
    }
}

#[async_trait]
impl Backend for Mysql {
    fn info(&self) -> Info {
        let mut info = Info::new("mysql");
        info.min_ttl = match self.opened.kind {
            Kind::Lease => MIN_TTL,
            // The server counts in whole seconds for how long a connection is silent.
            Kind::Session | Kind::Row => Duration::from_secs(2),
        };
        if self.opened.ways.bell.is_none() {
            info.wakeup = Wakeup::Poll;
        }
        info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        let taken = match self.take_turn(claim).await? {
            Turn::Here(token) => self.take_native(claim, token).await?,
            Turn::Others(busy) => return Ok(Attempt::Busy(busy)),
        };
        Ok(match taken {
            Taken::Granted(token) => Attempt::Granted(Grant::new(token, claim.ttl)),
            // The turn stays ours while we ask; `until_free` goes for the lock again.
            Taken::Blocked(_) => Attempt::Busy(Busy::new(claim.key.clone())),
            Taken::NotOurTurn => {
                let mut busy = Busy::new(claim.key.clone());
                busy.retry_after = Some(NATIVE_FIRST);
                Attempt::Busy(busy)
            }
        })
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        match &self.opened.native {
            Native::Session(session) => session.renew(self.lease(), claims).await,
            Native::Row(rows) => rows.renew(self.lease(), claims).await,
            Native::None => match self.lease().renew(claims).await {
                Ok(renewal) => claims.iter().map(|claim| renewal.lease(claim)).collect(),
                Err(error) => vec![Err(error); claims.len()],
            },
        }
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        let released = match &self.opened.native {
            Native::None => self.lease().release(claim).await,
            Native::Session(session) => session.release(self.lease(), claim).await,
            Native::Row(rows) => {
                // Over two connections, so side by side: who is next finds the row free, or tries
                // again a little later.
                let end = rows.end(&claim.key, claim.owner, claim.ttl);
                tokio::join!(self.lease().release(claim), end).0
            }
        };
        let (was, ring) = released?;
        self.wake(&ring);
        Ok(was)
    }

    /// A turn that came while we waited is made a grant here: the core asks again, or withdraws,
    /// whatever becomes of it. The server's own lock is gone for again and again, ever later the
    /// longer it is our turn: an evicted holder lets go in milliseconds, a foreign client perhaps
    /// never.
    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        let turn = self.opened.waits.until(&self.opened.ways, claim, End::Free).await?;
        loop {
            match self.take_native(claim, turn.token).await.ok()? {
                Taken::Granted(token) => return Some(Grant::new(token, turn.ttl)),
                Taken::Blocked(age) => {
                    tokio::time::sleep(age.clamp(NATIVE_FIRST, NATIVE_MOST)).await;
                }
                Taken::NotOurTurn => return None,
            }
        }
    }

    /// In `mode=lease` an eviction shows at the next renewal: a bell for every holder would double
    /// the connections.
    async fn until_lost(&self, claim: &Claim) {
        let (link, home) = match &self.opened.native {
            Native::None => std::future::pending().await,
            Native::Session(session) => (Some(self.lease().main().clone()), session.home(claim)),
            Native::Row(rows) => rows.home(claim).unzip(),
        };
        let (Some(link), Some(home)) = (link, home) else { return };
        tokio::select! {
            () = link.until_lost(&home) => {}
            _none = self.opened.waits.until(&self.opened.ways, claim, End::Lost) => {}
        }
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        self.lease().list(scope).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        let Some(evicted) = self.lease().evict(key, token).await? else { return Ok(false) };
        if let Some(owner) = evicted.owner {
            match &self.opened.native {
                Native::None => {}
                Native::Session(session) => session.drop_lock(self.lease(), key, owner),
                Native::Row(rows) => rows.end(key, owner, lease::LOOK).await,
            }
        }
        evicted.rings.iter().for_each(|ring| self.wake(ring));
        Ok(true)
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        examine::run(self.lease(), self.opened.kind).await
    }
}

/// A take is a millisecond; a busy server may need some tens of them.
const MIN_TTL: Duration = Duration::from_millis(50);
/// When to try again for a lock whose holder was evicted or is being ended, and how often at least.
const NATIVE_FIRST: Duration = Duration::from_millis(20);
const NATIVE_MOST: Duration = Duration::from_secs(1);
/// When to try again for what another claim of the same client has.
const SIBLING: Duration = Duration::from_millis(100);
