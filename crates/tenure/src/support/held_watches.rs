//! Watches over held claims: which of them may be lost.
//!
//! A client may hold very many locks, and watches each of them for as long as it is held. So there
//! is nothing here but what a watch needs: whether there was a message, and whom to wake. A waiter,
//! whose messages say more, has a registration with `wakeups`.
//!
//! A watch is a hint: when it ends, the engine checks the claim by a renewal. So one that ends
//! without a reason costs a request, and no lock.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::sync::Mutex;

/// The held claims of one backend that are watched, by owner.
pub(crate) struct HeldWatches<K>(Mutex<Registry<K>>);

struct Registry<K> {
    by_owner: HashMap<K, LatestWatch>,
    /// How many watches there ever were, modulo 2³².
    count: u32,
}

/// The latest watch over a claim.
struct LatestWatch {
    number: u32,
    /// Whether there was a message.
    is_over: bool,
    evicted: bool,
    waker: Option<Waker>,
}

impl<K: Copy + Eq + Hash> HeldWatches<K> {
    /// Watches a claim from now on. An earlier watch over the same claim ends.
    pub(crate) fn watch(self: &Arc<Self>, owner: K) -> HeldWatch<K> {
        let mut watches = self.0.lock();
        watches.count = watches.count.wrapping_add(1);
        let number = watches.count;
        let watch = LatestWatch { number, is_over: false, evicted: false, waker: None };
        if let Some(earlier) = watches.by_owner.insert(owner, watch) {
            drop(watches);
            earlier.waker.into_iter().for_each(Waker::wake);
        }
        HeldWatch { watches: self.clone(), owner, number }
    }

    /// A message: the claim may be lost.
    pub(crate) fn notify(&self, owner: K, evicted: bool) {
        let waker = self.0.lock().by_owner.get_mut(&owner).and_then(|watch| watch.end(evicted));
        waker.into_iter().for_each(Waker::wake);
    }

    /// Messages may have been missed: all claims may be lost.
    pub(crate) fn notify_all(&self) {
        let mut watches = self.0.lock();
        let wakers: Vec<_> =
            watches.by_owner.values_mut().filter_map(|watch| watch.end(false)).collect();
        drop(watches);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether a message to a claim that is watched said that it was evicted.
    pub(crate) fn was_evicted(&self, owner: K) -> bool {
        self.0.lock().by_owner.get(&owner).is_some_and(|watch| watch.evicted)
    }
}

impl LatestWatch {
    fn end(&mut self, evicted: bool) -> Option<Waker> {
        self.is_over = true;
        self.evicted |= evicted;
        self.waker.take()
    }
}

/// A watch over a held claim. Ready when the claim may be lost.
pub(crate) struct HeldWatch<K: Copy + Eq + Hash> {
    watches: Arc<HeldWatches<K>>,
    owner: K,
    number: u32,
}

impl<K: Copy + Eq + Hash> Future for HeldWatch<K> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut watches = self.watches.0.lock();
        match watches.by_owner.get_mut(&self.owner) {
            Some(watch) if watch.number == self.number && !watch.is_over => {
                watch.waker = Some(context.waker().clone());
                Poll::Pending
            }
            // A message, or a later watch over the same claim.
            _ => Poll::Ready(()),
        }
    }
}

impl<K: Copy + Eq + Hash> Drop for HeldWatch<K> {
    fn drop(&mut self) {
        let mut watches = self.watches.0.lock();
        if watches.by_owner.get(&self.owner).is_some_and(|watch| watch.number == self.number) {
            watches.by_owner.remove(&self.owner);
        }
    }
}

impl<K> Default for HeldWatches<K> {
    fn default() -> HeldWatches<K> {
        HeldWatches(Mutex::new(Registry { by_owner: HashMap::new(), count: 0 }))
    }
}

impl<K> fmt::Debug for HeldWatches<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeldWatches({})", self.0.lock().by_owner.len())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const OWNER: u32 = 1;
    const OTHER: u32 = 2;

    #[tokio::test]
    async fn a_message_ends_the_watch_over_its_claim_and_no_other() {
        let watches = Arc::<HeldWatches<u32>>::default();
        let (owner, other) = (OWNER, OTHER);
        let (mut watch, mut watch_other) = (watches.watch(owner), watches.watch(other));
        assert!((&mut watch).now_or_never().is_none());
        watches.notify(owner, true);
        assert!(watches.was_evicted(owner) && !watches.was_evicted(other));
        watch.await;
        assert!(!watches.was_evicted(owner), "the watch is gone");
        assert!((&mut watch_other).now_or_never().is_none());
        watches.notify_all();
        watch_other.await;
    }

    #[tokio::test]
    async fn a_task_that_watches_is_woken() {
        let watches = Arc::<HeldWatches<u32>>::default();
        let owner = OWNER;
        let task = tokio::spawn(watches.watch(owner));
        tokio::task::yield_now().await;
        watches.notify(owner, false);
        task.await.unwrap();
    }

    #[tokio::test]
    async fn a_later_watch_ends_the_earlier_one_and_outlives_it() {
        let watches = Arc::<HeldWatches<u32>>::default();
        let owner = OWNER;
        let earlier = tokio::spawn(watches.watch(owner));
        tokio::task::yield_now().await;
        let mut later = watches.watch(owner);
        earlier.await.unwrap();
        assert!((&mut later).now_or_never().is_none());
        watches.notify(owner, false);
        later.await;
        assert!(watches.0.lock().by_owner.is_empty());
    }
}
