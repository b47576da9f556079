//! The statements of `mode=session`: advisory locks of the session, and the registry with them.

use sha2::{Digest, Sha256};
use tokio_postgres::types::Type;

use super::registry::update_without_claim;
use crate::backends::postgres::connection::statement::Sql;
use crate::key::Key;

/// The number of a key's advisory lock: the first eight bytes of its SHA-256, little end first, as
/// a signed number. django-pglock computes the same.
pub(crate) fn lock_number(key: &Key) -> i64 {
    let digest = Sha256::digest(key.as_str().as_bytes());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest[..8]);
    i64::from_le_bytes(bytes)
}

/// Sets both limits of the session, from parameters that may be NULL.
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

/// Acquires the lock unless another waiter is first in the queue, draws the token while the lock is
/// held, and registers the holder. Returns the token, or NULL if the lock is busy. $1 number, $2
/// key, $3 owner, $4 ttl, $5 note, $6 channel; $7, $8 the limits of the session if it gets the
/// lock.
///
/// An advisory lock is not rolled back: if the statement fails after `pg_try_advisory_lock`, the
/// session has the lock all the same. The caller has to unlock then.
pub(crate) static ACQUIRE: Sql = Sql {
    text: concat!(
        "WITH got AS MATERIALIZED (SELECT CASE
  WHEN EXISTS (SELECT 1 FROM @.tenure_board b WHERE b.mode = 'session' AND b.key = $2 AND $3 <>
    (SELECT e->>'o' FROM jsonb_array_elements(b.queue) WITH ORDINALITY x(e, i)
     WHERE (e->>'u')::timestamptz > clock_timestamp() ORDER BY i LIMIT 1)) THEN NULL
  WHEN pg_try_advisory_lock($1) THEN nextval('@.tenure_token') END AS token),
p AS (INSERT INTO @.tenure_board AS l (mode, key, owner, token, pid, number, ttl, note, chan)
  SELECT 'session', $2, $3, token, pg_backend_pid(), $1, $4, $5, $6 FROM got
  WHERE token IS NOT NULL
  ON CONFLICT (mode, key) DO UPDATE SET owner = excluded.owner, token = excluded.token,
    pid = excluded.pid, number = excluded.number, ttl = excluded.ttl, since = excluded.since,
    note = excluded.note, chan = excluded.chan, queue = ",
        live_waiters!("clock_timestamp()", " AND e->>'o' <> excluded.owner"),
        "
  WHERE l.token < excluded.token)
SELECT token, NULL, NULL FROM got WHERE token IS NULL
UNION ALL SELECT token, ",
        set_limits!("$7", "$8"),
        " FROM got WHERE token IS NOT NULL"
    ),
    types: &[
        Type::INT8,
        Type::BYTEA,
        Type::TEXT,
        Type::FLOAT8,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
    ],
};

/// Releases the lock, and nothing else. $1 number.
pub(crate) static UNLOCK: Sql = Sql { text: "SELECT pg_advisory_unlock($1)", types: &[Type::INT8] };

/// Releases the lock, removes the claim from the registry and wakes the next waiter. The wake-up is
/// delivered at commit, after the unlock. $1 mode, $2 key, $3 owner, $4 number; $5, $6 the limits
/// of the session from now on, or NULL.
pub(crate) static UNLOCK_AND_REMOVE_CLAIM: Sql = Sql {
    text: concat!(
        "WITH u AS MATERIALIZED (SELECT pg_advisory_unlock($4) AS ok), r AS (",
        update_without_claim!(),
        ") SELECT ok, (SELECT pg_notify(w->>'c', 'look ' || (w->>'o')) FROM r \
         WHERE w IS NOT NULL), ",
        set_limits!("$5", "$6"),
        " FROM u"
    ),
    types: &[Type::TEXT, Type::BYTEA, Type::TEXT, Type::INT8, Type::TEXT, Type::TEXT],
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with Python: `int.from_bytes(sha256(name).digest()[:8], 'little', signed=True)`.
    const MY_LOCK: i64 = 6_170_642_704_201_584_368;

    #[test]
    fn a_key_has_the_number_that_django_pglock_computes() {
        assert_eq!(lock_number(&Key::new("my-lock").unwrap()), MY_LOCK);
    }
}
