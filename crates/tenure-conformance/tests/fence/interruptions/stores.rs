//! Which procedures `docs/fencing.md` shows for which store.

use anyhow::Result;

use super::schedule::SharedResource;
use super::tokens::Tokens;
use super::{column, files, services, sql};

/// How a holder works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Procedure {
    /// Everything in one transaction.
    OneTransaction,
    /// A first contact, a read, and later a write.
    FirstContact,
    /// A first contact, a read, and later a write, with a column of the resource as its fence.
    Column,
    /// What the page warns of: the fence sees the write only.
    WriteOnly,
}

/// The procedures that the page shows.
pub(super) fn procedures(url: &str) -> &'static [Procedure] {
    match scheme(url) {
        "mysql" | "postgres" | "sqlx+mysql" | "sqlx+postgres" => {
            &[Procedure::OneTransaction, Procedure::FirstContact]
        }
        "sqlite" => &[Procedure::OneTransaction, Procedure::FirstContact, Procedure::Column],
        _ => &[Procedure::FirstContact],
    }
}

/// A procedure that loses updates, if the store has one.
pub(super) fn unsafe_procedure(url: &str) -> Option<Procedure> {
    let cannot_read_unfenced = ["consul", "etcd", "memory", "zk"].contains(&scheme(url));
    (!cannot_read_unfenced).then_some(Procedure::WriteOnly)
}

/// A resource that is 0, and has no fence yet.
pub(super) async fn open(
    url: &str,
    name: &str,
    procedure: Procedure,
) -> Result<Box<dyn SharedResource>> {
    Ok(match scheme(url) {
        "sqlite" if procedure == Procedure::Column => Box::new(column::FencedRow::new(url, name)?),
        "mysql" | "postgres" | "sqlite" | "sqlx+mysql" | "sqlx+postgres" => {
            Box::new(sql::Row::new(url, name, procedure).await?)
        }
        "file" => Box::new(files::FencedFile::new(url, name, procedure)?),
        "http" => Box::new(services::Web::new(procedure)),
        "memory" => Box::new(services::Memory::default()),
        _ => Box::new(services::ServerKey::new(url, name, procedure)),
    })
}

/// The tokens of a real lock where the lock is the fence, else numbers.
pub(super) async fn tokens(url: &str, name: &str) -> Result<Tokens> {
    match scheme(url) {
        "consul" | "etcd" | "zk" => Tokens::grants(url, name).await,
        _ => Ok(Tokens::numbers()),
    }
}

pub(super) fn scheme(url: &str) -> &str {
    url.split_once(':').map_or(url, |(scheme, _)| scheme)
}
