//! What is in a store file.
//!
//! - `schema`: the tables, and how they are checked, created and brought up to date
//! - `row`: a row of the table of claims, and the statements that read rows

pub(super) mod row;
pub(super) mod schema;
