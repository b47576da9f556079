//! Which ways the page shows for which store.

use anyhow::Result;

use super::play::Ground;
use super::tokens::Tokens;
use super::{column, files, services, sql};

/// How a holder works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Everything in one transaction.
    OneTransaction,
    /// A first contact, a read, and later a write.
    FirstContact,
    /// The same, with a column of the resource's own for a fence.
    Column,
    /// What the page warns of: the fence sees the write only.
    WriteOnly,
}

/// The ways that the page shows.
pub(super) fn ways(url: &str) -> &'static [Way] {
    match scheme(url) {
        "mysql" | "postgres" => &[Way::OneTransaction, Way::FirstContact],
        "sqlite" => &[Way::OneTransaction, Way::FirstContact, Way::Column],
        _ => &[Way::FirstContact],
    }
}

/// One that loses updates, where it can be had.
pub(super) fn unsafe_way(url: &str) -> Option<Way> {
    let cannot_read_unfenced = ["consul", "etcd", "memory", "zk"].contains(&scheme(url));
    (!cannot_read_unfenced).then_some(Way::WriteOnly)
}

/// A resource that is 0, and has no fence yet.
pub(super) async fn open(url: &str, name: &str, way: Way) -> Result<Box<dyn Ground>> {
    Ok(match scheme(url) {
        "sqlite" if way == Way::Column => Box::new(column::Row::new(url, name)?),
        "mysql" | "postgres" | "sqlite" => Box::new(sql::Database::new(url, name, way).await?),
        "file" => Box::new(files::Folder::new(url, name, way)?),
        "http" => Box::new(services::Web::new(way)),
        "memory" => Box::new(services::Memory::default()),
        _ => Box::new(services::Plain::new(url, name, way)),
    })
}

/// Those of a real lock where the lock is the fence.
pub(super) async fn tokens(url: &str, name: &str) -> Result<Tokens> {
    match scheme(url) {
        "consul" | "etcd" | "zk" => Tokens::grants(url, name).await,
        _ => Ok(Tokens::numbers()),
    }
}

pub(super) fn scheme(url: &str) -> &str {
    url.split_once(':').map_or(url, |(scheme, _)| scheme)
}
