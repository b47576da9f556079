//! `tenure schema`: the statements that create the tables of a database, for clients that may not
//! create tables themselves.

use crate::args::{Dialect, Schema};
use crate::exit;
use crate::failure::Failure;
use crate::output;

pub(super) fn run(args: &Schema) -> Result<u8, Failure> {
    output::print(match args.dialect {
        Dialect::Mysql => tenure::backends::mysql::SCHEMA,
        Dialect::Postgres => tenure::backends::postgres::SCHEMA,
    })?;
    Ok(exit::DONE)
}
