//! How a client uses a lock of tenure: through tenure's client, with its deadlines, and with a
//! check of the guard before each step.

use std::time::Duration;

use tenure::{Attempt, Client, Config, Event, Guard};

use super::protocol::{ClientConfig, emit};
use crate::clock::Clock;
use crate::lease_events::LeaseRegistry;

/// A program that uses tenure.
pub(super) struct TenureClient {
    client: Client,
    lease: Duration,
    clock: Clock,
    leases: LeaseRegistry,
}

impl TenureClient {
    pub(super) async fn connect(
        config: &ClientConfig,
        clock: Clock,
    ) -> tenure::Result<TenureClient> {
        let leases = LeaseRegistry::default();
        let registry = leases.clone();
        let name = config.name.clone();
        let observer = move |event: &Event| {
            if let Some(kind) = registry.describe(event, |left| clock.after(left)) {
                emit(clock, &name, kind);
            }
        };
        let url: Config = config.url.parse()?;
        let client = url.owner(&config.name).observe(observer).connect().await?;
        let lease = Duration::from_millis(config.lease_ms);
        Ok(TenureClient { client, lease, clock, leases })
    }

    pub(super) async fn acquire(
        &self,
        hold: u64,
        key: &str,
        limit: Option<Duration>,
        fixed_lease: bool,
    ) -> tenure::Result<Guard> {
        let lock = self.client.lock(key).ttl(self.lease);
        let lock = if fixed_lease { lock.without_renewal() } else { lock };
        let guard = match limit {
            None => lock.acquire().await?,
            Some(Duration::ZERO) => lock.try_acquire().await?.granted()?,
            Some(limit) => match lock.acquire_within(limit).await? {
                Attempt::Granted(guard) => guard,
                Attempt::Busy(busy) => return Err(busy.into()),
            },
        };
        self.leases.add(hold, &guard);
        Ok(guard)
    }

    /// Until when the client may act as the holder.
    pub(super) fn deadline(&self, guard: &Guard) -> u64 {
        guard.check().map_or_else(|_| self.clock.now(), |left| self.clock.after(left))
    }
}
