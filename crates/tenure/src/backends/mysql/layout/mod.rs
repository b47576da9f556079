//! What is stored at the server.
//!
//! - `schema`: the tables, and creating them on first use
//! - `statements`: the statements that change the tables
//! - `handoff`: those among them that release a lock and pass it on
//! - `renewal`: those among them that extend leases
//! - `other_modes`: those for keys that are held in other modes than the exclusive one
//! - `outcome`: what they end with
//! - `rows`: the statements that read the tables, each beside the type that its rows are read into
//! - `listing`: the same for operators
//! - `literals`: values and names as they stand in a statement

mod handoff;
pub(crate) mod listing;
pub(crate) mod literals;
pub(crate) mod other_modes;
pub(crate) mod outcome;
pub(crate) mod renewal;
pub(crate) mod rows;
pub(crate) mod schema;
pub(crate) mod statements;
