//! Hints: when it is worth asking again, and when a lock may be gone. Every watch begins at the
//! revision after the one that was looked at, so that nothing is missed in between.

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
                () = self.watches.until_deleted(key, from) => {}
                () = session.until_dead() => {}
            },
            None => {
                // Free, or not known: either is worth an ask.
                if let Ok((Some(holder), now)) = self.holder_with_revision(&claim.key).await {
                    self.watches.until_deleted(holder.key, now + 1).await;
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
            () = self.watches.until_deleted(entry.written, entry.seen + 1) => {}
            () = entry.session.until_dead() => {}
        }
    }
}
