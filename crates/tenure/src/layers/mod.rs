//! Layers: a layer is a [`Backend`](crate::Backend) that owns a `Backend`. Composing is a call:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
//! use std::time::Duration;
//! use tenure::layers::{Retry, Timeout};
//! use tenure::Config;
//!
//! let config: Config = "memory:".parse()?;
//! let locks = config
//!     .connect_with(|backend| {
//!         let backend = Timeout::new(backend, Duration::from_secs(1));
//!         Retry::new(backend, 3, Duration::from_millis(50))
//!     })
//!     .await?;
//! locks.lock("a").acquire().await?.release().await?;
//! # Ok(()) }
//! ```
//!
//! A layer forwards every method explicitly and passes the whole conformance suite over `memory`.
//! A layer does not see what happens above the backend (waiting, cancelling, expiry): that is what
//! [`Event`](crate::Event)s are for.

mod retry;
mod timeout;

pub use retry::Retry;
pub use timeout::Timeout;
