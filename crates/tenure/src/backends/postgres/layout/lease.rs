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

/// The tombstones of row `l` that have not expired at `n`.
macro_rules! live_tombstones {
    () => {
        "CASE WHEN l.gone = '[]' THEN l.gone ELSE coalesce((SELECT jsonb_agg(e) \
         FROM jsonb_array_elements(l.gone) g(e) WHERE (e->>'u')::timestamptz > n), '[]') END"
    };
}

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
/// the second half of the UNION only reads. `is_current` is then false.
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

/// Releases the lock, or removes the queue entry; no row if the claim has neither. $1 key, $2
/// owner.
pub(crate) static RELEASE: Sql = Sql {
    text: concat!(
        "WITH r AS (UPDATE @.tenure_lease l SET ",
        handoff!("coalesce(l.owner = $2, false)", " AND e->>'o' <> $2", "$2", live_tombstones!()),
        "
  WHERE l.key = $1
    AND (l.owner = $2 OR l.queue @> jsonb_build_array(jsonb_build_object('o', $2::text)))
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
/// It always returns a row. So a release that is repeated because its response was lost learns from
/// `prior` that the first one did release the lock.
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
  RETURNING l.owner, l.token, l.chan, l.prior)
SELECT prior = $2 AS was_held, CASE WHEN owner IS NOT NULL
       THEN pg_notify(chan, 'grant ' || owner || ' ' || token) END FROM r"
    ),
    types: &[Type::BYTEA, Type::TEXT],
};

/// Owner and channel of the grant with this token. $1 key, $2 token.
pub(crate) static FIND_GRANT: Sql = Sql {
    text: "SELECT owner, chan FROM @.tenure_lease \
           WHERE key = $1 AND token = $2 AND owner IS NOT NULL AND until > clock_timestamp()",
    types: &[Type::BYTEA, Type::INT8],
};

/// Ends exactly the grant with this token, as its owner would. $1 key, $2 token.
pub(crate) static EVICT: Sql = Sql {
    text: concat!(
        "WITH r AS (UPDATE @.tenure_lease l SET ",
        handoff!("true", "", "''", live_tombstones!()),
        "
  WHERE l.key = $1 AND l.token = $2 AND l.owner IS NOT NULL AND l.until > clock_timestamp()
  RETURNING l.owner, l.token, l.chan)
SELECT CASE WHEN owner IS NOT NULL
       THEN pg_notify(chan, 'grant ' || owner || ' ' || token) END FROM r"
    ),
    types: &[Type::BYTEA, Type::INT8],
};

/// Pushes a message to a client. $1 channel, $2 message.
pub(crate) static NOTIFY: Sql =
    Sql { text: "SELECT pg_notify($1, $2)", types: &[Type::TEXT, Type::TEXT] };

/// Renews many leases, each by itself: a row that another transaction has locked is skipped, so
/// that it delays no other. $1 keys, $2 owners, $3 ttls, $4 tokens. A token that is not NULL has to
/// be that of the grant: the same owner may have a later one, if a late request of an evicted claim
/// acquired the lock again.
///
/// Returns for each claim, in order: whether it was renewed, whether it held the lock when the
/// statement began, and whether any claim did (`is_taken`). One that held the lock and was not
/// renewed was locked, or has just lost it.
pub(crate) static RENEW: Sql = Sql {
    text: "WITH r AS MATERIALIZED (SELECT * FROM unnest($1, $2, $3, $4)
  WITH ORDINALITY AS r(key, owner, ttl, token, i)),
h AS MATERIALIZED (SELECT l.key, r.ttl FROM r JOIN @.tenure_lease l
    ON l.key = r.key AND l.owner = r.owner AND l.token = coalesce(r.token, l.token)
  WHERE l.until > clock_timestamp() FOR NO KEY UPDATE OF l SKIP LOCKED),
u AS (UPDATE @.tenure_lease l
  SET until = greatest(l.until, clock_timestamp() + make_interval(secs => h.ttl))
  FROM h WHERE l.key = h.key RETURNING l.key, l.owner, l.token)
SELECT u.key IS NOT NULL AS renewed,
       coalesce(l.owner = r.owner AND l.token = coalesce(r.token, l.token)
                AND l.until > clock_timestamp(), false) AS was_held,
       coalesce(l.owner IS NOT NULL AND l.until > clock_timestamp(), false) AS is_taken
FROM r LEFT JOIN u ON u.key = r.key AND u.owner = r.owner AND u.token = coalesce(r.token, u.token)
LEFT JOIN @.tenure_lease l ON l.key = r.key ORDER BY r.i",
    types: &[Type::BYTEA_ARRAY, Type::TEXT_ARRAY, Type::FLOAT8_ARRAY, Type::INT8_ARRAY],
};

/// Renews one lease whose row another transaction has locked, and waits a little for that. $1 key,
/// $2 owner, $3 ttl, $4 token, $5 how long to wait.
pub(crate) static RENEW_LOCKED: Sql = Sql {
    text: "WITH s AS MATERIALIZED (SELECT set_config('lock_timeout', $5, true))
UPDATE @.tenure_lease l SET until = greatest(l.until, clock_timestamp() + make_interval(secs => $3))
FROM s WHERE l.key = $1 AND l.owner = $2 AND l.token = coalesce($4, l.token)
  AND l.until > clock_timestamp() RETURNING l.owner",
    types: &[Type::BYTEA, Type::TEXT, Type::FLOAT8, Type::INT8, Type::TEXT],
};

macro_rules! list {
    ($scope:literal) => {
        concat!(
            "SELECT key, token, note,
  extract(epoch FROM until - clock_timestamp())::float8 AS ttl_left,
  extract(epoch FROM clock_timestamp() - since)::float8 AS held_for,
  ARRAY(SELECT e->>'n' FROM jsonb_array_elements(queue) WITH ORDINALITY x(e, i)
        WHERE (e->>'u')::timestamptz > clock_timestamp() ORDER BY i) AS waiters,
  ARRAY(SELECT extract(epoch FROM clock_timestamp() - (e->>'s')::timestamptz)::float8
        FROM jsonb_array_elements(queue) WITH ORDINALITY x(e, i)
        WHERE (e->>'u')::timestamptz > clock_timestamp() ORDER BY i) AS waiting_for
FROM @.tenure_lease WHERE owner IS NOT NULL AND until > clock_timestamp() AND ",
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
