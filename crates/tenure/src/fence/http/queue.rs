//! The queue of each resource: one request at a time. A resource without requests has none.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;

use crate::support::sync::Mutex;

/// The queues of all resources that have requests.
#[derive(Debug, Default)]
pub(super) struct ResourceQueues(Mutex<HashMap<String, Queue>>);

/// A fair mutex: its waiters are the queue.
type Queue = Arc<tokio::sync::Mutex<()>>;

impl ResourceQueues {
    /// Waits for the turn, which lasts until the result is dropped. `None` if `limit` requests are
    /// in the queue already: a service that hangs must not collect more and more of them.
    pub(super) async fn enter(
        self: Arc<Self>,
        resource: String,
        limit: usize,
    ) -> Option<QueueTurn> {
        let (queue, mut turn) = {
            let mut queues = self.0.lock();
            let queue = queues.entry(resource.clone()).or_default();
            // The map has one reference, and each request in the queue another.
            if Arc::strong_count(queue) > limit.max(1) {
                return None;
            }
            (queue.clone(), QueueTurn { queues: self.clone(), resource, guard: None })
        };
        turn.guard = Some(queue.lock_owned().await);
        Some(turn)
    }
}

/// A request's turn at a resource, or its wait for it.
#[derive(Debug)]
pub(super) struct QueueTurn {
    queues: Arc<ResourceQueues>,
    resource: String,
    guard: Option<OwnedMutexGuard<()>>,
}

impl QueueTurn {
    /// The name of the resource.
    pub(super) fn resource(&self) -> &str {
        &self.resource
    }
}

impl Drop for QueueTurn {
    fn drop(&mut self) {
        // While this is locked no request can enter the queue, so that the count is exact. Its own
        // reference has to go first.
        let mut queues = self.queues.0.lock();
        self.guard = None;
        if queues.get(&self.resource).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            queues.remove(&self.resource);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_queue_is_kept_while_a_request_waits_and_no_longer() {
        let queues = Arc::new(ResourceQueues::default());
        let first = queues.clone().enter("a".into(), 3).await;
        let other = queues.clone().enter("b".into(), 3).await;
        let second = tokio::spawn(queues.clone().enter("a".into(), 3));
        let third = tokio::spawn(queues.clone().enter("a".into(), 3));
        while Arc::strong_count(&queues.0.lock()["a"]) < 4 {
            tokio::task::yield_now().await;
        }
        assert!(queues.clone().enter("a".into(), 3).await.is_none(), "a fourth waits");
        third.abort();
        assert!(third.await.unwrap_err().is_cancelled());
        assert!(!second.is_finished());
        drop(first);
        drop(second.await.unwrap());
        assert_eq!(queues.0.lock().len(), 1);
        drop(other);
        assert!(queues.0.lock().is_empty());
    }
}
