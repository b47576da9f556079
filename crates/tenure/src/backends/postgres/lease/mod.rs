//! `mode=lease`: a lock is a row of `tenure_lease` with an end of time. A client keeps nothing.
//!
//! - `acquire`, `renew`, `release`: each is one statement of `layout::lease`

pub(crate) mod acquire;
pub(crate) mod release;
pub(crate) mod renew;
