//! A statement and its parameters, as a [`Connection`](super::Connection) executes them.

use tokio_postgres::types::{ToSql, Type};

/// A statement and the types of its parameters; `@.` in its text stands for the schema.
pub(crate) struct Sql {
    pub(crate) text: &'static str,
    pub(crate) types: &'static [Type],
}

/// A parameter that can be moved into the task that executes the statement.
pub(crate) type SqlValue = Box<dyn ToSql + Sync + Send>;

/// Makes the parameters of a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        vec![$(Box::new($value) as crate::backends::postgres::connection::statement::SqlValue),*]
    };
}
pub(crate) use values;
