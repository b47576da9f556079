//! MySQL and MariaDB, in three modes: leases in a table, named locks of a connection, row locks of
//! a transaction. The user's page is `docs/backends/mysql.md`.
//!
//! | file | what it does |
//! |---|---|
//! | `config` | URL to `Config` |
//! | `connection` | one connection, owned by one task that executes requests in order |
//! | `layout/` | what is stored at the server: schema, statements, rows, literals |
//! | `acquire` | acquire the turn, then the server's own lock |
//! | `renew`, `release` | by mode |
//! | `lease/` | the tables: acquire, renew, release; the lock itself in `mode=lease`, and its other modes |
//! | `session/` | named locks: acquire, renew, release |
//! | `row/` | row locks: acquire, renew, release |
//! | `wait` | `until_free`, `until_lost`, and the poll task behind them |
//! | `wake_connection` | how one client wakes another: `KILL QUERY` |
//! | `admin` | `list`, `evict` |
//! | `doctor` | checks of the server |
//! | `sweep` | removes old rows |
//! | `error` | errors of the client library and the server |

mod acquire;
mod admin;
mod config;
mod connection;
mod doctor;
mod error;
mod layout;
mod lease;
mod release;
mod renew;
mod row;
mod session;
mod sweep;
mod wait;
mod wake_connection;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use crate::backend::{Attempt, Backend, Claim, Grant, Holding, Info, Modes, Scope, Wakeup};
use crate::error::Result;
use crate::finding::Finding;
use crate::hosted::Hosted;
use crate::key::Key;
use crate::support::url::Url;
use crate::token::FencingToken;
use config::{Config, LockMode};
use connection::{ConnectOptions, Connection};
use layout::schema;
use layout::statements::Statements;
use lease::LockTables;
use row::RowLocks;
use session::NamedLocks;
use wait::Waiters;

pub use layout::schema::SCHEMA;

/// An acquire takes a millisecond; a busy server may need some tens of them.
const MIN_LEASE_TTL: Duration = Duration::from_millis(50);
/// The server counts in whole seconds for how long a connection is silent.
const MIN_CONNECTION_TTL: Duration = Duration::from_secs(2);

/// Opens `mysql://user:password@host:port/database`.
pub(crate) async fn open(url: Url) -> Result<Mysql> {
    let config = Config::parse(url)?;
    let mode = config.mode;
    let runtime = tokio::runtime::Handle::current();
    let holds_locks = mode != LockMode::Lease;
    let demotions = Arc::default();
    let (opts, login) = (config.opts, config.login);
    let options = ConnectOptions { opts, login, holds_locks, id_prefix: "", demotions };
    let main = Connection::start(options.clone(), &runtime);
    let count = if holds_locks { 1 } else { config.connections };
    let by_key = (0..count).map(|_| Connection::start(options.clone(), &runtime)).collect();
    let wake_id = Uuid::new_v4().simple().to_string();
    schema::prepare(&main, mode).await?;
    let other_modes = mode == LockMode::Lease && schema::prepare_other_modes(&main).await?;
    let statements = Statements::new(mode, other_modes);
    let tables = Arc::new(LockTables::new(statements, main, by_key, wake_id));
    if let Some(every) = config.sweep {
        runtime.spawn(sweep::run(Arc::downgrade(&tables), every));
    }
    let server_locks = match mode {
        LockMode::Lease => ServerLocks::None,
        LockMode::Session => ServerLocks::Named(NamedLocks::default()),
        LockMode::Row => {
            ServerLocks::Row(RowLocks::new(&options, runtime.clone(), config.connections))
        }
    };
    let wake_options = config.wake_connection.then_some(options);
    let wakeup = if config.wake_connection { Wakeup::Push } else { Wakeup::Poll };
    let waiters = Arc::new(Waiters::new(tables.clone(), wake_options, runtime));
    let context = Context { tables, server_locks, waiters, mode, wakeup, shown: config.shown };
    Ok(Mysql { context: Arc::new(context) })
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
    context: Arc<Context>,
}

/// What the methods of one client share.
struct Context {
    tables: Arc<LockTables>,
    server_locks: ServerLocks,
    waiters: Arc<Waiters>,
    mode: LockMode,
    wakeup: Wakeup,
    /// Host, port and database, for `Debug` output.
    shown: String,
}

/// The server's own locks, which hold a lock beside its record in the tables.
enum ServerLocks {
    /// `mode=lease`: the record is the lock.
    None,
    /// `mode=session`.
    Named(NamedLocks),
    /// `mode=row`.
    Row(RowLocks),
}

impl Mysql {
    /// Opens the server that a URL names: `mysql://user:password@host:port/database?mode=lease`.
    ///
    /// # Errors
    ///
    /// `Invalid` if the URL is wrong, `Denied` if the login or a privilege is missing,
    /// `Unsupported` if a proxy shares connections in a mode that needs its own, `Unavailable`
    /// without a response.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future closes what was opened.
    pub async fn open(url: &str) -> Result<Hosted<Mysql>> {
        let url = Url::parse(url)?;
        Hosted::open(async move { open(url).await.map(Arc::new) }).await
    }
}

/// Ends the poll task, and with it the wake connection.
impl Drop for Context {
    fn drop(&mut self) {
        self.waiters.close();
    }
}

impl fmt::Debug for Mysql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mysql://{} ({:?})", self.context.shown, self.context.mode)
    }
}

#[async_trait]
impl Backend for Mysql {
    fn info(&self) -> Info {
        let mut info = Info::new("mysql");
        info.min_ttl = match self.context.mode {
            LockMode::Lease => MIN_LEASE_TTL,
            LockMode::Session | LockMode::Row => MIN_CONNECTION_TTL,
        };
        info.wakeup = self.context.wakeup;
        if self.context.tables.statements.other_modes {
            info.modes = Modes::ALL;
        }
        info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        acquire::try_acquire(&self.context, claim).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        renew::renew(&self.context, claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        release::release(&self.context, claim).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        wait::until_free(&self.context, claim).await
    }

    async fn until_lost(&self, claim: &Claim) {
        wait::until_lost(&self.context, claim).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        admin::list(&self.context, scope).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        admin::evict(&self.context, key, token).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::doctor(&self.context.tables).await
    }
}
