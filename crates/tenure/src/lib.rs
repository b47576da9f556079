//! A distributed lock for real services: one small API over the servers that teams already run.
//! Every grant carries a fencing token, so that the protected resource can refuse a stale holder.
//!
//! ```
//! # use std::error::Error;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn Error>> {
//! # struct Db; impl Db { async fn update_if_newer(&self, _: tenure::FencingToken, _: &str)
//! #     -> Result<(), std::io::Error> { Ok(()) } }
//! # let db = Db;
//! let locks = tenure::connect("memory:").await?; // or sqlite: …
//! let guard = locks.lock("orders/42").acquire().await?; // waits
//! guard
//!     .while_held(async {
//!         // stopped if the lock is lost
//!         db.update_if_newer(guard.token(), "paid").await // the token fences a stale holder out
//!     })
//!     .await??; // first ?: lost. second ?: your own error
//! guard.release().await?; // Err(Lost) if it was lost before
//! # Ok(()) }
//! ```
//!
//! # Which call?
//!
//! | you want | call |
//! |---|---|
//! | the work done under the lock, and no guard to care for | [`Lock::run`] |
//! | the lock, however long it takes | [`Lock::acquire`] |
//! | the lock soon, or the name of its holder | [`Lock::acquire_within`] |
//! | the lock now or not at all | [`Lock::try_acquire`] |
//! | the lock again, further down the call chain | [`Lock::reentrant`] |
//! | the lock together with other readers | [`Lock::shared`] |
//! | at most so many at a time | [`Client::semaphore`] |
//! | several locks, all of them or none | [`Client::lock_all`] |
//! | one leader at a time, and who it is | [`Client::election`] |
//! | no async | [`blocking`] |
//! | a client although the server is not there yet | [`connect_lazy`] |
//! | a response of an HTTP service for an error | [`ErrorKind`] has a table |
//!
//! # What if it is lost?
//!
//! A lock ends by itself, so that a crashed process does not hold it for ever. So it can also end
//! while its holder is paused, cut off or evicted. The holder knows the end of its lease without a
//! request, because it is counted from before the request was sent, on a clock that runs during
//! suspend.
//!
//! * [`Guard::while_held`] stops async work at its next await.
//! * [`Guard::check`] before each step of blocking work; the time left is the timeout for the step.
//! * A [`fence`] in the resource refuses what a stale holder still sends. Show it the
//!   [`token`](Guard::token) before the first read, and again with the write.
//!
//! # Servers
//!
//! | URL | server | feature | order | tokens | reach |
//! |---|---|---|---|---|---|
//! | `memory:` | none | `memory` | first come, first served | strict | one process |
//! | `sqlite:` | none: a file | `sqlite` | first come, first served | strict | one machine |
//! | `redis://`, `rediss://`, `redis+unix://` | Redis, Valkey | `redis` | first come, first served, or any | best effort | network |
//! | `redis+sentinel://`, `redis+cluster://` | Redis with failover, sharded | `redis` | first come, first served, or any | best effort | network |
//! | `redlock://` | independent Redis masters | `redlock` | any | best effort | network |
//! | `postgres://` | PostgreSQL | `postgres` | first come, first served | strict | network |
//! | `mysql://` | MySQL, MariaDB | `mysql` | first come, first served | strict | network |
//! | `etcd://`, `etcds://` | etcd | `etcd` | first come, first served | strict | network |
//! | `zk://` | ZooKeeper | `zookeeper` | first come, first served, or any | strict | network |
//! | `consul://`, `consuls://` | Consul | `consul` | first come, first served | strict | network |
//!
//! [`Client::info`] says this in code, and the [`backends`] have a module for each. Leases are 30 s
//! and renewed every third of that by default; see [`Config`] for the options that every URL takes.
//!
//! # How a program ends
//!
//! Dropping a guard releases its lock in the background. When the last handle of a client is
//! dropped, it waits for such releases while the server confirms them (ten seconds at most, and one
//! second if it confirms none), so that the lock of a guard dropped at the
//! end of `main` is released. [`Guard::release`] waits for the server's response, [`Client::flush`]
//! for every guard dropped so far, and [`Client::shutdown`] shuts a client down: its holders hear
//! it by [`Lease::closing`], and have some time to come to their end.
//!
//! Turn on rustc's lint `let_underscore_drop`: it catches `let _ = lock.acquire().await?`, which
//! acquires the lock and releases it at once.
//!
//! # Cargo features
//!
//! A feature only adds.
//!
//! | feature | what it adds |
//! |---|---|
//! | `memory` | locks inside one process, for tests; on by default |
//! | `sqlite` | the embedded store: locks between the processes of one machine, in a file |
//! | `redis` | Redis and Valkey: one server, Sentinel or Cluster |
//! | `redlock` | a majority of independent Redis masters |
//! | `postgres` | PostgreSQL: leases in a table, advisory locks, or row locks |
//! | `mysql` | MySQL and MariaDB: leases in a table, named locks, or row locks |
//! | `etcd` | etcd, in the layout of its own lock package |
//! | `zookeeper` | ZooKeeper, in the layout of Curator |
//! | `consul` | Consul, in the layout of its own `api.Lock` |
//! | `tls` | encrypted connections to Redis, PostgreSQL, etcd and Consul |
//! | `mysql-tls` | encrypted connections to MySQL and MariaDB |
//! | `serde` | [`Config`], [`Key`] and [`FencingToken`] in configuration files and messages; [`Busy`], [`Holder`], [`Holding`], [`Waiter`] and [`Lost`] as the JSON of the program |
//! | `fence-http` | the header `Fencing-Token` and a tower layer that checks it: `fence::http` |
//! | `fence-mysql-async` | a [`fence`] in a transaction of mysql_async |
//! | `fence-redis` | a [`fence`] over a connection of redis-rs |
//! | `fence-rusqlite` | a [`fence`] in a transaction of rusqlite |
//! | `fence-sqlx` | a [`fence`] in a transaction of sqlx 0.9, on PostgreSQL, MySQL and MariaDB; needs Rust 1.94 |
//! | `fence-sqlx-mysql` | the same, on MySQL and MariaDB only |
//! | `fence-sqlx-postgres` | the same, on PostgreSQL only |
//! | `fence-tokio-postgres` | a [`fence`] in a transaction of tokio-postgres |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

pub mod backend;
pub mod backends;
pub mod blocking;
mod client;
mod config;
mod election;
mod engine;
mod error;
mod event;
pub mod fence;
mod finding;
mod guard;
mod hosted;
mod key;
pub mod layers;
mod lazy;
mod lease;
mod lock;
mod lock_set;
mod reentrant;
mod semaphore;
#[cfg(feature = "serde")]
mod serde;
mod support;
mod token;

pub use backend::Backend;
pub use backend::{Attempt, Busy, Holder, Holding, Lost, LostReason, Mode, Waiter};
pub use client::Client;
pub use config::Config;
pub use election::{Election, Leader, Observer};
pub use error::{Error, ErrorKind, Result};
pub use event::Event;
pub use finding::{Finding, Severity};
pub use guard::Guard;
pub use hosted::Hosted;
pub use key::Key;
pub use lease::Lease;
pub use lock::Lock;
pub use lock_set::{GuardSet, LockSet};
pub use reentrant::Reentrant;
pub use semaphore::{Permit, Semaphore};
pub use support::credentials::Credentials;
pub use support::url::duration;
pub use token::FencingToken;

/// Connects to the server of this URL. See [`Config::connect`].
///
/// # Errors
///
/// `Invalid` for a wrong URL, `Unsupported` if the backend is not built in, `Unavailable` and
/// `Denied` by the server.
///
/// # Cancel safety
///
/// **Cancel safe.** Dropping the future closes what was opened.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("memory:").await?;
/// locks.lock("orders/42").acquire().await?.release().await?;
/// # Ok(()) }
/// ```
pub fn connect(url: &str) -> impl Future<Output = Result<Client>> + Send + use<> {
    let config = url.parse::<Config>();
    async move { config?.connect().await }
}

/// A client that connects at its first use. See [`Config::connect_lazy`].
///
/// # Errors
///
/// `Invalid` for a wrong URL, `Unsupported` if the backend is not built in.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect_lazy("memory:")?;
/// locks.lock("orders/42").acquire().await?.release().await?;
/// # Ok(()) }
/// ```
pub fn connect_lazy(url: &str) -> Result<Client> {
    url.parse::<Config>()?.connect_lazy()
}

impl Client {
    /// A client over that backend, with the default configuration.
    ///
    /// # Panics
    ///
    /// If the system cannot start the client's thread.
    pub fn new(backend: impl Backend) -> Client {
        Config::default().with_backend(backend)
    }
}
