//! Settings of a connection that locks depend on, whatever an administrator set for other clients.
//!
//! `statement_timeout` and `lock_timeout` bound how long a statement can hang at the server.
//! `synchronous_commit` is raised where a commit would be confirmed before it is durable: a lease
//! must not be rolled back by a crash, nor be missing on a synchronous standby after a failover. A
//! stricter value (`remote_apply`) is left as it is.

macro_rules! wait_for_commits {
    ($local:literal) => {
        concat!(
            "SELECT set_config('synchronous_commit', 'on', ",
            $local,
            ") WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write'); "
        )
    };
}

/// Sets up a session, once after it was opened.
pub(crate) const SESSION_SETUP: &str = concat!(
    "SET default_transaction_isolation = 'read committed'; \
     SET default_transaction_read_only = off; SET statement_timeout = '10s'; \
     SET lock_timeout = '4s'; SET idle_in_transaction_session_timeout = '60s'; \
     SELECT set_config('idle_session_timeout', '0', false) \
     WHERE current_setting('server_version_num')::int >= 140000; ",
    wait_for_commits!("false")
);

/// Sets up one transaction, where the session cannot be set up because a pooler is in front.
pub(crate) const TRANSACTION_SETUP: &str = concat!(
    "SET LOCAL statement_timeout = '10s'; SET LOCAL lock_timeout = '4s'; ",
    wait_for_commits!("true")
);
