//! A distributed lock for real services: one small API over the servers that people already run.
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
//! guard.release().await?; // Err(Lost) if it was gone before
//! # Ok(()) }
//! ```
//!
//! # Which call?
//!
//! | you want | call |
//! |---|---|
//! | the work done under the lock, and no guard to care for | [`Lock::run`] |
//! | the lock, however long it takes | [`Lock::acquire`] |
//! | the lock soon, or the name of who has it | [`Lock::acquire_within`] |
//! | the lock now or not at all | [`Lock::try_acquire`] |
//! | the same lock again, further down the call chain | [`Lock::reentrant`] |
//! | no async | [`blocking`] |
//!
//! # What if it is lost?
//!
//! A lock that a crashed process must not hold for ever ends by itself, and so it can end under a
//! holder that was paused, cut off or evicted. The holder knows the end of its lease without asking
//! anybody, because it is counted from before the request was sent, on a clock that runs during
//! suspend.
//!
//! * [`Guard::while_held`] stops async work at its next await.
//! * [`Guard::check`] before each step of blocking work; the time left is the timeout for the step.
//! * A [`fence`] in the resource refuses what a stale holder still sends. Show it the
//!   [`token`](Guard::token) before the first read, and again with the write.
//!
//! # Servers
//!
//! | URL | order | tokens | reaches |
//! |---|---|---|---|
//! | `memory:` | first come first served | strict | one process |
//! | `sqlite:` | first come first served | strict | one machine |
//! | `redis://` | first come first served, or any | best effort | network |
//! | `redis+sentinel://`, `redis+cluster://` | the same | best effort | network |
//! | `redlock://` | any | best effort | network |
//!
//! [`Client::info`] says the same in code. Leases are 30 s and renewed every third of that by
//! default; see [`Config`] for the options that every URL takes.
//!
//! # How a program ends
//!
//! Dropping a guard releases its lock in the background. When the last handle of a client goes, it
//! waits up to a second for such releases, so a guard dropped at the end of `main` is given back.
//! [`Guard::release`] waits for the server's word, [`Client::flush`] for everything dropped so far,
//! and [`Client::shutdown`] ends a client in good order.
//!
//! Turn on rustc's lint `let_underscore_drop`: it catches `let _ = lock.acquire().await?`, which
//! takes the lock and gives it back at once.
//!
//! # Cargo features
//!
//! One for each server (`memory`, the only default, `sqlite`, `redis`, `redlock`), `tls` for
//! encrypted connections, and `serde` for [`Config`], [`Key`] and [`FencingToken`] in configuration
//! files and messages; and one for each client that a [`fence`] works with: `fence-http`,
//! `fence-mysql-async`, `fence-redis`, `fence-rusqlite`, `fence-tokio-postgres`. A feature only
//! adds.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

mod acquire;
pub mod backend;
pub mod backends;
pub mod blocking;
mod claim;
mod client;
mod clock;
mod config;
mod error;
pub mod fence;
mod finding;
mod guard;
mod held;
mod home;
mod hosted;
mod janitor;
mod keeper;
mod key;
pub mod layers;
mod lease;
mod lock;
mod observe;
mod options;
mod reentrant;
#[cfg(feature = "serde")]
mod serde;
mod shared;
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis"
))]
mod tls;
mod token;

pub use backend::Backend;
pub use claim::{Attempt, Busy, Holder, Holding, Lost, LostReason, Waiter};
pub use client::Client;
pub use config::Config;
pub use error::{Error, ErrorKind, Result};
pub use finding::{Finding, Grade};
pub use guard::Guard;
pub use hosted::Hosted;
pub use key::Key;
pub use lease::Lease;
pub use lock::Lock;
pub use observe::Event;
pub use options::duration;
pub use reentrant::Reentrant;
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

impl Client {
    /// A client with default settings over that backend.
    ///
    /// # Panics
    ///
    /// If the system cannot start the client's thread.
    pub fn new(backend: impl Backend) -> Client {
        Config::default().over(backend)
    }
}
