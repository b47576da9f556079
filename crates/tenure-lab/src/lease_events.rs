//! From the events of tenure's client to the events of a history.
//!
//! A client's events name a key and a token; a history names the attempt. So each grant is
//! registered here with its attempt.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::{Event as ClientEvent, Guard, Key, Lease, LostReason};

use crate::history::EventKind;
use crate::sync::Mutex;

/// The leases that were granted, by key and token. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaseRegistry(Arc<Mutex<HashMap<(Key, u64), LeaseEntry>>>);

#[derive(Debug)]
struct LeaseEntry {
    hold: u64,
    lease: Lease,
}

impl LeaseRegistry {
    /// Registers the grant of an attempt.
    pub(crate) fn add(&self, hold: u64, guard: &Guard) {
        let lease = guard.lease().clone();
        let key = (guard.key().clone(), guard.token().get());
        self.0.lock().insert(key, LeaseEntry { hold, lease });
    }

    /// The event for the history; none for an event that the history has already, or that is of a
    /// grant that is not registered. `after` gives the moment that is this far from now.
    pub(crate) fn describe(
        &self,
        event: &ClientEvent,
        after: impl Fn(Duration) -> u64,
    ) -> Option<EventKind> {
        let leases = self.0.lock();
        match event {
            ClientEvent::Renewed { key, token, .. } => {
                let entry = leases.get(&(key.clone(), token.get()))?;
                let deadline = entry.lease.check().ok().map(after);
                Some(EventKind::Renewed { hold: entry.hold, deadline })
            }
            ClientEvent::Lost(lost) if lost.reason() != LostReason::Released => {
                let entry = leases.get(&(lost.key().clone(), lost.token().get()))?;
                let why = format!("{:?}", lost.reason());
                Some(EventKind::Lost { hold: entry.hold, why })
            }
            _ => None,
        }
    }
}

/// Whether a lock was still held when it was released; none if the server did not respond.
pub(crate) fn was_held(released: &tenure::Result<()>) -> Option<bool> {
    match released {
        Ok(()) => Some(true),
        Err(error) if error.kind() == tenure::ErrorKind::Lost => Some(false),
        Err(_) => None,
    }
}
