//! The connection to a store file.
//!
//! - `thread`: the thread that owns the open store, and the handle by which async code reaches it
//! - `store`: the open store: transactions, the session of this client, maintenance
//! - `open`: opens and sets up the SQLite connection

pub(super) mod open;
pub(super) mod store;
pub(super) mod thread;
