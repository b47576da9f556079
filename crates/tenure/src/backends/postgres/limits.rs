//! How long the session that has all locks of a client may be silent, and how long its statements
//! may wait.

use std::time::Duration;

/// What the server is told of a session, with the statement that takes or gives back a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// After how long without a word the server ends the session, which frees the locks of a holder
    /// that hangs: a little after the longest lease, which the holder knows to be over by then.
    /// Zero is never: a client that holds nothing is no hung holder.
    idle: Duration,
    /// How long a statement waits for a row that another transaction has locked. Statements come
    /// one after the other: none may wait for so long that a renewal after it comes too late.
    wait: Duration,
}

impl Limits {
    /// Nothing is held.
    pub(super) const NONE: Limits = Limits { idle: Duration::ZERO, wait: LONGEST_WAIT };

    /// With one more lock of this ttl.
    #[must_use]
    pub(super) fn with(self, ttl: Duration) -> Limits {
        Limits { idle: self.idle.max(ttl + ttl / 4), wait: self.wait.min(ttl / 8) }
    }

    /// For a statement; NULL where the server cannot end a silent session.
    pub(super) fn idle(self, version: i32) -> Option<String> {
        (version >= IDLE_SESSION).then(|| self.idle.as_millis().to_string())
    }

    /// For a statement.
    pub(super) fn wait(self) -> String {
        self.wait.as_millis().max(1).to_string()
    }
}

/// Sets both limits, from parameters that may be NULL.
macro_rules! set_limits {
    ($idle:literal, $wait:literal) => {
        concat!(
            "CASE WHEN ",
            $idle,
            " IS NOT NULL THEN set_config('idle_session_timeout', ",
            $idle,
            ", false) END, CASE WHEN ",
            $wait,
            " IS NOT NULL THEN set_config('lock_timeout', ",
            $wait,
            ", false) END"
        )
    };
}
pub(super) use set_limits;

/// The same as on other connections.
const LONGEST_WAIT: Duration = Duration::from_secs(4);
/// The first version with `idle_session_timeout`.
const IDLE_SESSION: i32 = 140_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_lease_sets_the_silence_and_the_shortest_the_wait() {
        let limits = Limits::NONE.with(Duration::from_secs(8)).with(Duration::from_secs(2));
        assert_eq!(limits.idle(140_000).as_deref(), Some("10000"));
        assert_eq!(limits.wait(), "250");
        assert_eq!(limits.idle(130_000), None);
        assert_eq!(Limits::NONE.idle(140_000).as_deref(), Some("0"));
        assert_eq!(Limits::NONE.wait(), "4000");
    }
}
