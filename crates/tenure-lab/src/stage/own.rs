//! How tenure's own lock is used: through its client, with its own deadlines, and with a look at
//! the guard before each step.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::{Attempt, Client, Config, Event, Guard, Lease, LostReason};

use super::clock::Clock;
use super::part::{Part, say};
use crate::history::What;

/// A program that uses tenure.
pub(crate) struct Own {
    client: Client,
    lease: Duration,
    clock: Clock,
    book: Book,
}

/// Which attempt a token belongs to, for what the client's own thread tells.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<HashMap<(String, u64), Entry>>>);

struct Entry {
    hold: u64,
    lease: Lease,
}

impl Own {
    pub(crate) async fn connect(part: &Part, clock: Clock) -> tenure::Result<Own> {
        let config: Config = part.url.parse()?;
        let (book, name) = (Book::default(), part.name.clone());
        let told = book.clone();
        let tell = move |event: &Event| {
            if let Some(what) = told.describe(event, clock) {
                say(clock, &name, what);
            }
        };
        let client = config.owner(&part.name).observe(tell).connect().await?;
        Ok(Own { client, lease: Duration::from_millis(part.lease_ms), clock, book })
    }

    pub(crate) async fn take(
        &self,
        hold: u64,
        key: &str,
        patience: Option<Duration>,
        fixed: bool,
    ) -> tenure::Result<Guard> {
        let lock = self.client.lock(key).ttl(self.lease);
        let lock = if fixed { lock.without_renewal() } else { lock };
        let guard = match patience {
            None => lock.acquire().await?,
            Some(Duration::ZERO) => lock.try_acquire().await?.granted()?,
            Some(patience) => match lock.acquire_within(patience).await? {
                Attempt::Granted(guard) => guard,
                Attempt::Busy(busy) => return Err(busy.into()),
            },
        };
        let entry = Entry { hold, lease: guard.lease().clone() };
        self.book.lines().insert((key.to_owned(), guard.token().get()), entry);
        Ok(guard)
    }

    /// Until when the guard may be believed.
    pub(crate) fn deadline(&self, guard: &Guard) -> u64 {
        guard.check().map_or_else(|_| self.clock.now(), |left| self.clock.after(left))
    }
}

impl Book {
    fn lines(&self) -> MutexGuard<'_, HashMap<(String, u64), Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the lab wants to know of what the client tells.
    fn describe(&self, event: &Event, clock: Clock) -> Option<What> {
        let lines = self.lines();
        let find = |key: &tenure::Key, token: u64| lines.get(&(key.as_str().to_owned(), token));
        match event {
            Event::Renewed { key, token, .. } => {
                let entry = find(key, token.get())?;
                let deadline = entry.lease.check().ok().map(|left| clock.after(left));
                Some(What::Renewed { hold: entry.hold, deadline })
            }
            Event::Lost(lost) if lost.reason() != LostReason::Released => {
                let entry = find(lost.key(), lost.token().get())?;
                Some(What::Lost { hold: entry.hold, why: format!("{:?}", lost.reason()) })
            }
            _ => None,
        }
    }
}
