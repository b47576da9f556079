//! One at a time for each resource, and nothing kept for those that nobody asks for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

/// A gate for each resource.
#[derive(Debug, Default)]
pub(super) struct Gates(Mutex<HashMap<String, Gate>>);

type Gate = Arc<tokio::sync::Mutex<()>>;

impl Gates {
    /// Waits for the turn, which lasts until the result is dropped. None if so many wait or work
    /// there already: what hangs must not gather everybody else's requests.
    pub(super) async fn enter(self: Arc<Self>, resource: String, most: usize) -> Option<Turn> {
        let (gate, mut turn) = {
            let mut table = self.table();
            let gate = table.entry(resource.clone()).or_default();
            // The table has one, and everybody who is here another.
            if Arc::strong_count(gate) > most.max(1) {
                return None;
            }
            (gate.clone(), Turn { gates: self.clone(), resource, guard: None })
        };
        turn.guard = Some(gate.lock_owned().await);
        Some(turn)
    }

    fn table(&self) -> MutexGuard<'_, HashMap<String, Gate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn at a gate, or the wait for it.
#[derive(Debug)]
pub(super) struct Turn {
    gates: Arc<Gates>,
    resource: String,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turn {
    /// Of which resource.
    pub(super) fn resource(&self) -> &str {
        &self.resource
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut table = self.gates.table();
        // Under the table's lock nobody can come to this gate; ours is let go of first.
        self.guard = None;
        if table.get(&self.resource).is_some_and(|gate| Arc::strong_count(gate) == 1) {
            table.remove(&self.resource);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_gate_is_kept_while_somebody_waits_and_no_longer() {
        let gates = Arc::new(Gates::default());
        let first = gates.clone().enter("a".into(), 3).await;
        let other = gates.clone().enter("b".into(), 3).await;
        let second = tokio::spawn(gates.clone().enter("a".into(), 3));
        let third = tokio::spawn(gates.clone().enter("a".into(), 3));
        while Arc::strong_count(&gates.table()["a"]) < 4 {
            tokio::task::yield_now().await;
        }
        assert!(gates.clone().enter("a".into(), 3).await.is_none(), "a fourth waits");
        third.abort();
        assert!(third.await.unwrap_err().is_cancelled());
        assert!(!second.is_finished());
        drop(first);
        drop(second.await.unwrap());
        assert_eq!(gates.table().len(), 1);
        drop(other);
        assert!(gates.table().is_empty());
    }
}
