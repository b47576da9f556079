//! Rows of keys that nobody has used for a minute are removed, in small batches. The floor rises
//! above their tokens first, so that no token ever comes twice.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::book::Book;
use super::lease::Lease;
use super::link::Link;
use super::literals::hex;
use super::options::Kind;
use super::state;
use crate::error::Result;

/// Sweeps a batch now and then, for as long as the client lives.
pub(super) async fn run(lease: Weak<Lease>, kind: Kind, every: Duration) {
    let mut after = Vec::new();
    loop {
        // A full batch means that there is more: go on soon.
        let pause = if after.is_empty() { every } else { every.min(SOON) };
        tokio::time::sleep(pause).await;
        let Some(lease) = lease.upgrade() else { return };
        // What fails now may work in a minute.
        after = batch(&lease, kind, &after).await.unwrap_or_default();
    }
}

/// Sweeps the rows after this key. The key to go on after is empty at the end of the table.
async fn batch(lease: &Arc<Lease>, kind: Kind, after: &[u8]) -> Result<Vec<u8>> {
    let (book, link) = (&lease.book, lease.patient());
    let after = hex(after);
    let answer = link.ask(book.sweep_end(&after, BATCH), LONGEST).await?;
    let next: Vec<u8> = match answer.last() {
        Some(row) => state::value(row, 0)?,
        None => Vec::new(),
    };
    // No key has more than 512 bytes, and none begins with 255.
    let last = if next.is_empty() { hex([0xff]) } else { hex(&next) };
    link.ask(book.sweep(&after, &last), LONGEST).await?;
    if kind == Kind::Row {
        rows(link, book, &after, &last).await?;
    }
    Ok(next)
}

/// Removes rows to be locked whose record is gone, but for those that are locked. In two steps: a
/// DELETE waits for locked rows, also for those that its subquery passes over.
async fn rows(link: &Link, book: &Book, after: &str, last: &str) -> Result<()> {
    let lease = book.lease;
    let free = format!(
        "SELECT k FROM tenure_row_lock o WHERE k>{after} AND k<={last} \
         AND NOT EXISTS (SELECT 1 FROM {lease} l WHERE l.k=o.k) FOR UPDATE SKIP LOCKED"
    );
    let answer = link.ask(free, LONGEST).await?;
    let keys = answer.sets.first().into_iter().flatten();
    let keys = keys.map(|row| state::value::<Vec<u8>>(row, 0).map(hex));
    let keys = keys.collect::<Result<Vec<_>>>()?;
    if !keys.is_empty() {
        let keys = keys.join(",");
        link.ask(format!("DELETE FROM tenure_row_lock WHERE k IN ({keys})"), LONGEST).await?;
    }
    Ok(())
}

/// Rows in one transaction: some milliseconds, during which no new key can be made.
const BATCH: usize = 1000;
const SOON: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(5);
