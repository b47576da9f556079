//! Hints: when it is worth asking again, and when a lock may be gone. Every watch begins at the
//! revision after the one that was looked at, so that nothing is missed in between.

use super::ask::{self, RANGE};
use super::people::LOOK;
use super::proto::RangeResponse;
use super::store::Store;
use crate::claim::Claim;

impl Store {
    /// Whoever has a place watches only the one before it; others watch the holder.
    pub(super) async fn until_free(&self, claim: &Claim) {
        let watched = match self.table.find(claim) {
            Some(entry) => entry.behind.map(|behind| (behind, entry.session)),
            None => None,
        };
        match watched {
            Some(((key, from), session)) => tokio::select! {
                () = self.until_deleted(key, from) => {}
                () = session.until_dead() => {}
            },
            None => {
                // Free, or not known: either is worth an ask.
                if let Ok((Some(holder), now)) = self.holder_with_revision(&claim.key).await {
                    self.until_deleted(holder.key, now + 1).await;
                }
            }
        }
    }

    pub(super) async fn until_lost(&self, claim: &Claim) {
        let Some(entry) = self.table.get(claim) else { return };
        if !entry.granted {
            return;
        }
        tokio::select! {
            () = self.watches.watch(entry.written, entry.seen + 1).ended() => {}
            () = entry.session.until_dead() => {}
        }
    }

    /// Returns when the key was deleted at `from` or later, or may have been.
    ///
    /// A watch that begins in the past is served only ten times a second. So where others have
    /// written since, another begins now, and a look makes sure that nothing was missed.
    async fn until_deleted(&self, key: Vec<u8>, from: i64) {
        let mut watch = self.watches.watch(key.clone(), from);
        if watch.begun().await.is_none_or(|now| now < from) {
            return watch.ended().await;
        }
        let mut watch = self.watches.watch(key.clone(), 0);
        watch.begun().await;
        let look = self.wire.call::<_, RangeResponse>(RANGE, ask::get(&key), LOOK).await;
        if look.is_ok_and(|found| !found.body.kvs.is_empty()) {
            watch.ended().await;
        }
    }
}
