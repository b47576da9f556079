//! `mode=lease`: a lock is a row of `tenure_lease` with an end of time. A client keeps nothing.
//!
//! - `acquire`, `renew`, `release`: each is one statement of `layout::lease`, or of
//!   `layout::holders` if the row is mixed: has a holder or waiter that is not exclusive
//! - `response`: what the statements of `layout::holders` respond
//! - `downgrade`: makes an exclusive grant shared
//! - `mixed_keys`: which rows were mixed when last seen

pub(crate) mod acquire;
pub(crate) mod downgrade;
pub(crate) mod mixed_keys;
pub(crate) mod release;
pub(crate) mod renew;
mod response;
