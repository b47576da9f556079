//! PostgreSQL: leases in a table, advisory locks of a session, or row locks of a transaction.
//!
//! `settings` reads the URL; a `link` is one connection, `lanes` are the few of a client, `bells`
//! ring who waits in it. `lease` with the statements in `sql` is the default mode; in `session` and
//! `row` a connection holds the lock, and the `board` says who holds and waits. The user's page is
//! `docs/backends/postgres.md`.

mod bells;
mod board;
mod connect;
mod encrypt;
mod examine;
mod fault;
mod hold;
mod lanes;
mod lease;
mod limits;
mod link;
mod pooler;
mod renewal;
mod row;
mod schema;
mod session;
mod settings;
mod sql;
mod sweep;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{Backend, Claim, Grant, Info, Scope, Wakeup};
use crate::claim::{Attempt, Holding};
use crate::error::Result;
use crate::finding::Finding;
use crate::hosted::Hosted;
use crate::key::Key;
use crate::options::Options;
use crate::token::FencingToken;
use hold::Hold;
use lanes::Lanes;
use row::Rows;
pub use schema::SCHEMA;
use session::Session;
use settings::{Kind, Settings};

/// Opens `postgres://`.
pub(crate) async fn open(options: Options) -> Result<Postgres> {
    let lanes = Lanes::new(Settings::take(options)?);
    let hold = match lanes.settings.pooled {
        true => None,
        false => start(&lanes).await?,
    };
    schema::provide(&lanes).await?;
    sweep::start(&lanes);
    Ok(Postgres { lanes, hold: hold.map(Arc::new) })
}

/// Makes sure that sessions are our own, and uses those that proved it.
async fn start(lanes: &Arc<Lanes>) -> Result<Option<Hold>> {
    let mode = lanes.settings.mode;
    let Some([one, two]) = pooler::probe(lanes).await? else {
        return Err(settings::pooler(mode));
    };
    if mode == Kind::Lease {
        lanes.adopt(one).await?;
        return Ok(None);
    }
    if mode == Kind::Session {
        one.batch(link::SETUP.to_owned()).await?;
        return Ok(Some(Hold::Session(Session::start(lanes, one))));
    }
    for link in [&one, &two] {
        link.batch(link::SETUP.to_owned()).await?;
    }
    Ok(Some(Hold::Rows(Rows::start(lanes, vec![one, two]))))
}

/// Locks in a PostgreSQL database. Clones share their connections.
///
/// # Examples
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use tenure::{Config, backends::Postgres};
///
/// let postgres = Postgres::open("postgres://app:secret@db.example/app").await?;
/// let locks = Config::default().over(postgres);
/// let guard = locks.lock("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Postgres {
    lanes: Arc<Lanes>,
    /// Where a connection holds the lock, and not a row with an end of time.
    hold: Option<Arc<Hold>>,
}

impl Postgres {
    /// Opens the database that a URL names: `postgres://user:password@host/database?mode=lease`.
    ///
    /// # Errors
    ///
    /// `Invalid` if the URL is wrong; `Denied` if the server does not let us in or we may not make
    /// the tables; `Unsupported` behind a pooler that the mode cannot live with; `Unavailable` if
    /// nobody answers.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future closes what was opened.
    pub async fn open(url: &str) -> Result<Hosted<Postgres>> {
        let options = Options::parse(url)?;
        Hosted::open(async move { open(options).await.map(Arc::new) }).await
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lanes.settings.fmt(f)
    }
}

#[async_trait]
impl Backend for Postgres {
    fn info(&self) -> Info {
        let wakeup = if self.lanes.settings.pooled { Wakeup::Poll } else { Wakeup::Push };
        let min_ttl = if self.hold.is_some() { MIN_TTL_OF_SESSIONS } else { MIN_TTL };
        // The other modes take a connection of the pool for the attempt.
        let busy_leaves_nothing = self.hold.is_none();
        Info { min_ttl, wakeup, busy_leaves_nothing, ..Info::new("postgres") }
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        match &self.hold {
            None => lease::try_acquire(&self.lanes, claim).await,
            Some(hold) => hold.try_acquire(&self.lanes, claim).await,
        }
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        match &self.hold {
            None => renewal::renew(&self.lanes, claims).await,
            Some(hold) => hold.renew(claims).await,
        }
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        match &self.hold {
            None => lease::release(&self.lanes, claim).await,
            Some(hold) => hold.release(&self.lanes, claim).await,
        }
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        lease::until_free(&self.lanes, claim).await
    }

    async fn until_lost(&self, claim: &Claim) {
        match &self.hold {
            None => self.lanes.bells.until_lost(claim.owner, || true).await,
            Some(hold) => hold.until_lost(&self.lanes, claim).await,
        }
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        match &self.hold {
            None => lease::list(&self.lanes, scope).await,
            Some(_) => hold::list(&self.lanes, scope).await,
        }
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        match &self.hold {
            None => lease::evict(&self.lanes, key, token).await,
            Some(hold) => hold.evict(&self.lanes, key, token).await,
        }
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        examine::examine(&self.lanes).await
    }
}

/// A statement takes about a millisecond; a busy machine or network some tens of them.
const MIN_TTL: Duration = Duration::from_millis(50);
/// A lock may need a new connection first, which takes a busy server some hundred milliseconds.
const MIN_TTL_OF_SESSIONS: Duration = Duration::from_secs(1);
