//! What is stored at the server.
//!
//! - `schema`: the tables, and creating them on first use
//! - `statements`: the statements that change the tables
//! - `handoff`: those among them that release a lock and pass it on
//! - `rows`: the statements that read the tables, each beside the type that its rows are read into
//! - `literals`: values and names as they stand in a statement

mod handoff;
pub(crate) mod literals;
pub(crate) mod rows;
pub(crate) mod schema;
pub(crate) mod statements;
