//! A distributed lock for real services: one small API over the servers that people already run,
//! with a fencing token on every grant.
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
mod guard;
mod held;
mod home;
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
mod token;

pub use backend::Backend;
pub use claim::{Attempt, Busy, Holder, Holding, Lost, LostReason, Waiter};
pub use client::Client;
pub use config::Config;
pub use error::{Error, ErrorKind, Result};
pub use guard::Guard;
pub use key::Key;
pub use lease::Lease;
pub use lock::Lock;
pub use observe::Event;
pub use options::{Options, duration};
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
