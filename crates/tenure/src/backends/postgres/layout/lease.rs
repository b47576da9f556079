//! The statements of `mode=lease` on the table `tenure_lease`. Each is one round trip and one
//! transaction.
//!
//! **State.** A row per key: `owner`, `token`, `until` (end of the lease on the server's clock),
//! `queue` (waiters in order, each with an end of its own) and `gone` (tombstones of cancelled
//! claims, each with an end). The lock is held while `owner` is set and `until` is in the future;
//! otherwise it is free for the first waiter whose entry has not expired. A released row stays,
//! with `owner` NULL.
//!
//! **Who changes it.** Any client, for any claim: [`ACQUIRE`] grants an expired lock to the waiter
//! that is first, whichever claim it was sent for, so that no background task has to expire leases.
//! Every change is made with the row locked, so that holder and queue are always seen together.
//!
//! **Invariants.**
//! - A new grant has a higher token than every earlier one of the key. A takeover draws it from the
//!   sequence with the row locked. An insert draws it before there is a row to lock, which is
//!   correct only because a row never disappears while a statement that may insert it is running:
//!   the sweep locks the whole table (see `sweep`).
//! - No statement moves the end of a lease or a queue entry back. `excluded` is computed once,
//!   before the statement waits for the row. It may be old when it takes effect, and a later
//!   request of the same claim may have had its response by then. Hence every `greatest(…)`.
//! - A claim with a tombstone gets neither the lock nor a queue entry: its release was sent after a
//!   request with an unknown outcome, and that request may be carried out after the release.
//!
//! Time is always `clock_timestamp()`: `now()` is the start of the transaction, which may have
//! waited for the row since. `OFFSET 0` keeps the planner from evaluating a subquery once per
//! column that uses it.

use tokio_postgres::types::Type;

use crate::backends::postgres::connection::statement::Sql;

/// Acquires a key, refreshes or finds an own grant, or adds or refreshes a queue entry. If the lock
/// is free and others wait in front, it is granted to the first of them. $1 key, $2 owner, $3 ttl
/// in seconds, $4 note, $5 whether the claim waits, $6 the client's channel.
///
/// Subqueries, from the inside: the time `n` and the live waiters; the queue `q` with this claim in
/// it; the waiter `w` that gets the lock if it is free. `held` means that an owner holds the lock,
/// `own` that it is this one, and `cancelled` that this claim has a tombstone. A queue has at most
/// 256 entries; further claims poll.
///
/// A claim that is refused and does not wait changes nothing: `WHERE` leaves nothing to insert, and
/// the second half of the UNION only reads. `is_current` is then false; so it is if the row is
/// mixed, for which the statement does nothing.
pub(crate) static ACQUIRE: Sql = Sql {
    text: concat!(
        "WITH t AS (
  INSERT INTO @.tenure_lease AS l (key, owner, token, until, note, chan)
  SELECT $1, $2, nextval('@.tenure_token'), clock_timestamp() + make_interval(secs => $3), $4, $6
  WHERE $5 OR NOT EXISTS (SELECT 1 FROM @.tenure_lease h
    WHERE h.key = $1 AND h.owner <> $2 AND h.until > clock_timestamp())
  ON CONFLICT (key) DO UPDATE SET (owner, token, until, since, note, chan, queue, gone) = (
    SELECT CASE WHEN held THEN l.owner ELSE w->>'o' END,
           CASE WHEN held OR w IS NULL THEN l.token ELSE nextval('@.tenure_token') END,
           CASE WHEN own THEN greatest(l.until, excluded.until) WHEN held THEN l.until
                ELSE coalesce((w->>'u')::timestamptz, n) END,
           CASE WHEN held THEN l.since ELSE n END,
           CASE WHEN held THEN l.note ELSE coalesce(w->>'n', '') END,
           CASE WHEN held THEN l.chan ELSE coalesce(w->>'c', '') END,
           CASE WHEN held THEN q ELSE q - 0 END,
           ",
        live_tombstones!(),
        "
    FROM (SELECT n, held, own, q,
                 CASE WHEN jsonb_array_length(q) > 0 THEN q->0
                      WHEN NOT cancelled THEN entry END AS w
      FROM (SELECT n, held, own, cancelled, entry, CASE
          WHEN own OR cancelled OR NOT $5 THEN live
          WHEN live @> jsonb_build_array(jsonb_build_object('o', excluded.owner)) THEN
            (SELECT jsonb_agg(CASE WHEN e->>'o' = excluded.owner
                              THEN entry || jsonb_build_object('s', e->'s', 'u', greatest(
                                (e->>'u')::timestamptz, excluded.until)) ELSE e END ORDER BY i)
             FROM jsonb_array_elements(live) WITH ORDINALITY x(e, i))
          WHEN jsonb_array_length(live) >= 256 THEN live
          ELSE live || entry END AS q
        FROM (SELECT n, l.owner IS NOT NULL AND l.until > n AS held,
                     coalesce(l.owner = excluded.owner, false) AND l.until > n AS own,
                     l.gone @> jsonb_build_array(jsonb_build_object('o', excluded.owner))
                       AS cancelled,
                     jsonb_build_object('o', excluded.owner, 'u', excluded.until, 's', n,
                                        'n', excluded.note, 'c', excluded.chan) AS entry,
                     ",
        live_waiters!("n", ""),
        " AS live
              FROM (SELECT clock_timestamp() AS n OFFSET 0) c
              OFFSET 0) s1 OFFSET 0) s2 OFFSET 0) s3)
  WHERE NOT ",
        is_mixed!(),
        "
  RETURNING l.owner, l.token, l.until, l.since, l.note, l.chan, l.queue)
SELECT true AS is_current, owner, token,
       extract(epoch FROM until - clock_timestamp())::float8 AS ttl_left,
       extract(epoch FROM clock_timestamp() - since)::float8 AS held_for, note,
       (SELECT min(i) - 1 FROM jsonb_array_elements(queue) WITH ORDINALITY x(e, i)
        WHERE e->>'o' = $2) AS rank,
       CASE WHEN owner <> $2 AND token = currval('@.tenure_token')
            THEN pg_notify(chan, 'grant ' || owner || ' ' || token) END
FROM t
UNION ALL
SELECT false, owner, token, extract(epoch FROM until - clock_timestamp())::float8,
       extract(epoch FROM clock_timestamp() - since)::float8, note, NULL, NULL
FROM @.tenure_lease WHERE key = $1 AND NOT EXISTS (SELECT 1 FROM t)"
    ),
    types: &[Type::BYTEA, Type::TEXT, Type::FLOAT8, Type::TEXT, Type::BOOL, Type::TEXT],
};

/// The new contents of row `l` when a claim ends. If it is the holder (`$own`), the lock is handed
/// off to the first live waiter, whose queue entry's end becomes the end of the lease. `$others` is
/// a condition on the waiters that stay, `$prior` the claim that is noted as the last one to
/// release, `$tombstones` the new contents of that column.
macro_rules! handoff {
    ($own:literal, $others:literal, $prior:literal, $tombstones:expr) => {
        concat!(
            "(owner, token, until, since, note, chan, queue, prior, gone) = (
    SELECT CASE WHEN own THEN w->>'o' ELSE l.owner END,
           CASE WHEN own AND w IS NOT NULL THEN nextval('@.tenure_token') ELSE l.token END,
           CASE WHEN own THEN coalesce((w->>'u')::timestamptz, n) ELSE l.until END,
           CASE WHEN own THEN n ELSE l.since END,
           CASE WHEN own THEN coalesce(w->>'n', '') ELSE l.note END,
           CASE WHEN own THEN coalesce(w->>'c', '') ELSE l.chan END,
           CASE WHEN own THEN live - 0 ELSE live END,
           CASE WHEN own AND l.until > n THEN ",
            $prior,
            " ELSE l.prior END,
           ",
            $tombstones,
            "
    FROM (SELECT n, own, live, live->0 AS w
      FROM (SELECT n, ",
            $own,
            " AS own,
                   ",
            live_waiters!("n", $others),
            " AS live
            FROM (SELECT clock_timestamp() AS n OFFSET 0) c OFFSET 0) s1 OFFSET 0) s2)"
        )
    };
}

/// Releases the lock, or removes the queue entry; no row if the claim has neither, or if the row is
/// mixed. $1 key, $2 owner.
pub(crate) static RELEASE: Sql = Sql {
    text: concat!(
        "WITH r AS (UPDATE @.tenure_lease l SET ",
        handoff!("coalesce(l.owner = $2, false)", " AND e->>'o' <> $2", "$2", live_tombstones!()),
        "
  WHERE l.key = $1
    AND (l.owner = $2 OR l.queue @> jsonb_build_array(jsonb_build_object('o', $2::text)))
    AND NOT ",
        is_mixed!(),
        "
  RETURNING l.owner, l.token, l.chan, l.prior)
SELECT prior = $2 AS was_held, CASE WHEN owner IS NOT NULL
       THEN pg_notify(chan, 'grant ' || owner || ' ' || token) END FROM r"
    ),
    types: &[Type::BYTEA, Type::TEXT],
};

/// As [`RELEASE`], for a claim with an unconfirmed request: also writes a tombstone for a minute,
/// so that the request acquires nothing if it is carried out after this. Inserts a free row if
/// there is none, since the tombstone has to be somewhere. $1 key, $2 owner.
///
/// It always returns a row, unless the row is mixed. So a release that is repeated because its
/// response was lost learns from `prior` that the first one did release the lock.
pub(crate) static RELEASE_WITH_TOMBSTONE: Sql = Sql {
    text: concat!(
        "WITH r AS (
  INSERT INTO @.tenure_lease AS l (key, owner, token, until, gone)
  VALUES ($1, NULL, 0, clock_timestamp() + interval '1 minute',
          jsonb_build_array(jsonb_build_object('o', $2::text,
                            'u', clock_timestamp() + interval '1 minute')))
  ON CONFLICT (key) DO UPDATE SET ",
        handoff!(
            "coalesce(l.owner = $2, false)",
            " AND e->>'o' <> $2",
            "$2",
            concat!(live_tombstones!(), " || excluded.gone")
        ),
        "
  WHERE NOT ",
        is_mixed!(),
        "
  RETURNING l.owner, l.token, l.chan, l.prior)
SELECT prior = $2 AS was_held, CASE WHEN owner IS NOT NULL
       THEN pg_notify(chan, 'grant ' || owner || ' ' || token) END FROM r"
    ),
    types: &[Type::BYTEA, Type::TEXT],
};

/// Owner and channel of the grant with this token, in tables that an earlier version made. $1 key,
/// $2 token.
pub(crate) static FIND_GRANT: Sql = Sql {
    text: "SELECT owner, chan FROM @.tenure_lease \
           WHERE key = $1 AND token = $2 AND owner IS NOT NULL AND until > clock_timestamp()",
    types: &[Type::BYTEA, Type::INT8],
};

/// Ends exactly the grant with this token, as its owner would, in tables that an earlier version
/// made. $1 key, $2 token.
pub(crate) static EVICT: Sql = Sql {
    text: concat!(
        "WITH r AS (UPDATE @.tenure_lease l SET ",
        handoff!("true", "", "''", live_tombstones!()),
        "
  WHERE l.key = $1 AND l.token = $2 AND l.owner IS NOT NULL AND l.until > clock_timestamp()
    AND NOT ",
        is_mixed!(),
        "
  RETURNING l.owner, l.token, l.chan)
SELECT CASE WHEN owner IS NOT NULL
       THEN pg_notify(chan, 'grant ' || owner || ' ' || token) END FROM r"
    ),
    types: &[Type::BYTEA, Type::INT8],
};

/// Pushes a message to a client. $1 channel, $2 message.
pub(crate) static NOTIFY: Sql =
    Sql { text: "SELECT pg_notify($1, $2)", types: &[Type::TEXT, Type::TEXT] };

/// The mode of element `e`: its weight and limit; nothing if it is exclusive.
macro_rules! mode_of {
    () => {
        "concat_ws(' ', e->>'w', e->>'l')"
    };
}

/// A value of each holder of a mixed row; NULL if the holder is in the columns.
macro_rules! of_holders {
    ($value:expr) => {
        concat!(
            "CASE WHEN owner ^@ '~' THEN ARRAY(SELECT ",
            $value,
            " FROM jsonb_array_elements(holders) WITH ORDINALITY x(e, i)
        WHERE (e->>'u')::timestamptz > statement_timestamp() ORDER BY i) END"
        )
    };
}

/// A value of each waiter.
macro_rules! of_waiters {
    ($value:expr) => {
        concat!(
            "ARRAY(SELECT ",
            $value,
            " FROM jsonb_array_elements(queue) WITH ORDINALITY x(e, i)
        WHERE (e->>'u')::timestamptz > statement_timestamp() ORDER BY i)"
        )
    };
}

/// The clock must not go on between two of its arrays, whose elements belong together. Tables that
/// an earlier version made have no column `holders`, and no row that needs it.
macro_rules! list {
    ($scope:literal) => {
        concat!(
            "SELECT key, token, note,
  extract(epoch FROM until - statement_timestamp())::float8 AS ttl_left,
  extract(epoch FROM statement_timestamp() - since)::float8 AS held_for,
  ",
            of_holders!("e->>'n'"),
            " AS holder_notes,
  ",
            of_holders!(mode_of!()),
            " AS holder_modes,
  ",
            of_holders!("(e->>'t')::bigint"),
            " AS holder_tokens,
  ",
            of_holders!(
                "extract(epoch FROM (e->>'u')::timestamptz - statement_timestamp())::float8"
            ),
            " AS holder_ttls,
  ",
            of_holders!(
                "extract(epoch FROM statement_timestamp() - (e->>'s')::timestamptz)::float8"
            ),
            " AS holder_times,
  ",
            of_waiters!("e->>'n'"),
            " AS waiters,
  ",
            of_waiters!(mode_of!()),
            " AS waiter_modes,
  ",
            of_waiters!(
                "extract(epoch FROM statement_timestamp() - (e->>'s')::timestamptz)::float8"
            ),
            " AS waiting_for
FROM (SELECT key, owner, token, note, until, since, queue,
        CASE WHEN owner ^@ '~' THEN to_jsonb(l)->'holders' END AS holders
      FROM @.tenure_lease l) l
WHERE owner IS NOT NULL AND until > statement_timestamp() AND ",
            $scope,
            " ORDER BY key"
        )
    };
}

/// Lists one key, if it is held. $1 key.
pub(crate) static LIST_KEY: Sql = Sql { text: list!("key = $1"), types: &[Type::BYTEA] };

/// Lists every held key from $1 on and before $2, or to the end if that is NULL.
pub(crate) static LIST_RANGE: Sql = Sql {
    text: list!("key >= $1 AND ($2 IS NULL OR key < $2)"),
    types: &[Type::BYTEA, Type::BYTEA],
};
