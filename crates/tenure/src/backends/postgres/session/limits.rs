//! How long the session that has all locks of a client may be idle, and how long its statements may
//! wait for a locked row.

use std::time::Duration;

/// The `lock_timeout` of every other connection too.
const MAX_WAIT: Duration = Duration::from_secs(4);
/// The first version with `idle_session_timeout`.
pub(crate) const HAS_IDLE_SESSION_TIMEOUT: i32 = 140_000;

/// Limits of the session at the server, set by the statement that acquires or releases a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionLimits {
    /// After how long without a request the server ends the session, which frees the locks of a
    /// holder that hangs: a little after the longest lease, which the holder knows to be over by
    /// then. Zero is never: a client that holds nothing may be idle.
    idle: Duration,
    /// How long a statement waits for a row that another transaction has locked. Statements of the
    /// session are executed one after the other: none may wait for so long that a renewal after it
    /// comes too late.
    wait: Duration,
}

impl SessionLimits {
    /// No lock is held.
    pub(super) const NONE: SessionLimits = SessionLimits { idle: Duration::ZERO, wait: MAX_WAIT };

    /// With one more lock of this ttl.
    #[must_use]
    pub(super) fn with(self, ttl: Duration) -> SessionLimits {
        SessionLimits { idle: self.idle.max(ttl + ttl / 4), wait: self.wait.min(ttl / 8) }
    }

    /// The value of `idle_session_timeout`; NULL where the server does not have it.
    pub(super) fn idle(self, version: i32) -> Option<String> {
        (version >= HAS_IDLE_SESSION_TIMEOUT).then(|| self.idle.as_millis().to_string())
    }

    /// The value of `lock_timeout`.
    pub(super) fn wait(self) -> String {
        self.wait.as_millis().max(1).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_lease_limits_idling_and_the_shortest_limits_waiting() {
        let limits = SessionLimits::NONE.with(Duration::from_secs(8)).with(Duration::from_secs(2));
        assert_eq!(limits.idle(140_000).as_deref(), Some("10000"));
        assert_eq!(limits.wait(), "250");
        assert_eq!(limits.idle(130_000), None);
        assert_eq!(SessionLimits::NONE.idle(140_000).as_deref(), Some("0"));
        assert_eq!(SessionLimits::NONE.wait(), "4000");
    }
}
