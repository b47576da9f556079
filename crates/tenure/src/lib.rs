//! A distributed lock for real services.

#![warn(missing_docs)]

pub mod backend;
pub mod backends;
mod claim;
mod clock;
mod error;
pub mod fence;
mod home;
mod key;
mod observe;
mod options;
mod token;

pub use claim::{Attempt, Busy, Holder, Holding, Lost, LostReason, Waiter};
pub use error::{Error, ErrorKind, Result};
pub use key::Key;
pub use observe::Event;
pub use options::{Options, duration};
pub use token::FencingToken;
