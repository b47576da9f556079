//! PostgreSQL: leases in a table, advisory locks of a session, or row locks of a transaction.
//!
//! - `config`: the URL
//! - `libpq`: options of libpq in the URL
//! - `connection/`: one connection, the pool of a client, dialing, and detection of poolers
//! - `layout/`: the tables and the statements
//! - `acquire`, `renew`, `release`: the operations, by mode
//! - `lease/`, `session/`, `row/`: the operations of each mode
//! - `wait`: until a lock may be free, or lost
//! - `push`: messages that the server pushes, and their delivery to a claim
//! - `admin`: list and evict
//! - `doctor`: checks of the server
//! - `error`: errors of the server and of the client library as errors of tenure
//! - `sweep`: removes rows that expired long ago
//!
//! The user's page is `docs/backends/postgres.md`.

mod acquire;
mod admin;
mod config;
mod connection;
mod doctor;
mod error;
mod layout;
mod lease;
mod libpq;
mod push;
mod release;
mod renew;
mod row;
mod session;
mod sweep;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{Attempt, Backend, Claim, Grant, Holding, Info, Modes, Scope, Wakeup};
use crate::error::Result;
use crate::finding::Finding;
use crate::hosted::Hosted;
use crate::key::Key;
use crate::support::url::Url;
use crate::token::FencingToken;
use config::{Config, LockMode};
use connection::pool::Pool;
use connection::pooler;
use connection::setup::SESSION_SETUP;
use layout::schema;
pub use layout::schema::SCHEMA;
use row::RowLocks;
use session::SessionLocks;

/// A statement takes about a millisecond; a busy machine or network some tens of them.
const MIN_TTL: Duration = Duration::from_millis(50);
/// Where a connection holds the lock, an acquire may have to open one first, which takes a busy
/// server some hundred milliseconds.
const MIN_TTL_OF_SESSIONS: Duration = Duration::from_secs(1);

/// Opens `postgres://`.
pub(crate) async fn open(url: Url) -> Result<Postgres> {
    let pool = Pool::new(Config::from_url(url)?);
    let mode = if pool.config.pooled { ModeState::Lease } else { start(&pool).await? };
    schema::prepare(&pool).await?;
    sweep::start(&pool);
    Ok(Postgres { pool, mode: Arc::new(mode) })
}

/// Verifies that no pooler is in front, and uses the connections of that check for the mode.
async fn start(pool: &Arc<Pool>) -> Result<ModeState> {
    let mode = pool.config.mode;
    let Some([one, two]) = pooler::probe(pool).await? else {
        return Err(config::pooler_in_front(mode));
    };
    match mode {
        LockMode::Lease => {
            pool.adopt([one, two]).await?;
            Ok(ModeState::Lease)
        }
        LockMode::Session => {
            one.batch(SESSION_SETUP.to_owned()).await?;
            Ok(ModeState::Session(SessionLocks::start(pool, one)))
        }
        LockMode::Row => {
            for connection in [&one, &two] {
                connection.batch(SESSION_SETUP.to_owned()).await?;
            }
            Ok(ModeState::Row(RowLocks::start(pool, vec![one, two])))
        }
    }
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
/// let locks = Config::default().with_backend(postgres);
/// let guard = locks.lock("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Postgres {
    pool: Arc<Pool>,
    mode: Arc<ModeState>,
}

/// What a client keeps for the locks of its mode.
enum ModeState {
    /// Nothing: a lock is a row with an end of time.
    Lease,
    /// The session that has the locks.
    Session(SessionLocks),
    /// The transactions that have the locks.
    Row(Arc<RowLocks>),
}

impl Postgres {
    /// Opens the database that a URL names: `postgres://user:password@host/database?mode=lease`.
    ///
    /// # Errors
    ///
    /// `Invalid` if the URL is wrong; `Denied` if the login fails or the role may not create the
    /// tables; `Unsupported` behind a pooler that the mode does not work with; `Unavailable` if no
    /// host responds.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future closes what was opened.
    pub async fn open(url: &str) -> Result<Hosted<Postgres>> {
        let url = Url::parse(url)?;
        Hosted::open(async move { open(url).await.map(Arc::new) }).await
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.config.fmt(f)
    }
}

#[async_trait]
impl Backend for Postgres {
    fn info(&self) -> Info {
        let is_lease = matches!(*self.mode, ModeState::Lease);
        let wakeup = if self.pool.config.pooled { Wakeup::Poll } else { Wakeup::Push };
        let min_ttl = if is_lease { MIN_TTL } else { MIN_TTL_OF_SESSIONS };
        // The other modes use a connection of the client for the attempt.
        let busy_leaves_nothing = is_lease;
        let has_modes = is_lease && self.pool.has_modes();
        let modes = if has_modes { Modes::ALL } else { Modes::default() };
        Info { min_ttl, wakeup, busy_leaves_nothing, modes, ..Info::new("postgres") }
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        acquire::try_acquire(&self.pool, &self.mode, claim).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        renew::renew(&self.pool, &self.mode, claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        release::release(&self.pool, &self.mode, claim).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        wait::until_free(&self.pool, claim).await
    }

    async fn until_lost(&self, claim: &Claim) {
        wait::until_lost(&self.pool, &self.mode, claim).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        admin::list(&self.pool, scope).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        admin::evict(&self.pool, key, token).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::doctor(&self.pool).await
    }
}
