//! The statements of `mode=lease`. Each is one trip and one transaction.
//!
//! Time is `clock_timestamp()` only: `now()` is the start of the transaction. `OFFSET 0` keeps the
//! planner from evaluating the queue once per column.

use tokio_postgres::types::Type;

use super::link::Sql;

/// The waiters of row `l` that are alive at `n`.
macro_rules! live {
    ($and:literal) => {
        concat!(
            "coalesce((SELECT jsonb_agg(e ORDER BY i) ",
            "FROM jsonb_array_elements(l.queue) WITH ORDINALITY x(e, i) ",
            "WHERE (e->>'u')::timestamptz > n",
            $and,
            "), '[]')"
        )
    };
}

/// What is left of the withdrawn claims of row `l` at `n`.
macro_rules! gone {
    () => {
        "CASE WHEN l.gone = '[]' THEN l.gone ELSE coalesce((SELECT jsonb_agg(e) \
         FROM jsonb_array_elements(l.gone) g(e) WHERE (e->>'u')::timestamptz > n), '[]') END"
    };
}

/// Takes, asks again, takes or refreshes a place, finds an own grant, and helps: if the lock is
/// free with waiters in front, the first of them gets it. $1 key, $2 owner, $3 ttl in seconds,
/// $4 note, $5 whether to wait, $6 our channel.
///
/// The token of a takeover is drawn with the row locked. That of an insert is drawn before, which
/// is right only because a row never disappears while a statement that may insert it is running:
/// see the sweep. A refused try without a place reads and writes nothing.
///
/// `excluded` is computed once, before the statement waits for the row. It may be old when it takes
/// effect, and a later request of the same claim may have been answered meanwhile: so no end of a
/// lease or of a queue entry is ever moved back.
pub(super) static TAKE: Sql = Sql {
    text: concat!(
        "WITH t AS (
  INSERT INTO @.tenure_lease AS l (key, owner, token, until, note, chan)
  SELECT $1, $2, nextval('@.tenure_token'), clock_timestamp() + make_interval(secs => $3), $4, $6
  WHERE $5 OR NOT EXISTS (SELECT 1 FROM @.tenure_lease h
    WHERE h.key = $1 AND h.owner <> $2 AND h.until > clock_timestamp())
  ON CONFLICT (key) DO UPDATE SET (owner, token, until, since, note, chan, queue, gone) = (
    SELECT CASE WHEN held THEN l.owner ELSE w->>'o' END,
           CASE WHEN held OR w IS NULL THEN l.token ELSE nextval('@.tenure_token') END,
           CASE WHEN mine THEN greatest(l.until, excluded.until) WHEN held THEN l.until
                ELSE coalesce((w->>'u')::timestamptz, n) END,
           CASE WHEN held THEN l.since ELSE n END,
           CASE WHEN held THEN l.note ELSE coalesce(w->>'n', '') END,
           CASE WHEN held THEN l.chan ELSE coalesce(w->>'c', '') END,
           CASE WHEN held THEN q ELSE q - 0 END,
           ",
        gone!(),
        "
    FROM (SELECT n, held, mine, q,
                 CASE WHEN jsonb_array_length(q) > 0 THEN q->0 WHEN NOT dead THEN me END AS w
      FROM (SELECT n, held, mine, dead, me, CASE
          WHEN mine OR dead OR NOT $5 THEN live
          WHEN live @> jsonb_build_array(jsonb_build_object('o', excluded.owner)) THEN
            (SELECT jsonb_agg(CASE WHEN e->>'o' = excluded.owner
                              THEN me || jsonb_build_object('s', e->'s', 'u', greatest(
                                (e->>'u')::timestamptz, excluded.until)) ELSE e END ORDER BY i)
             FROM jsonb_array_elements(live) WITH ORDINALITY x(e, i))
          WHEN jsonb_array_length(live) >= 256 THEN live
          ELSE live || me END AS q
        FROM (SELECT n, l.owner IS NOT NULL AND l.until > n AS held,
                     coalesce(l.owner = excluded.owner, false) AND l.until > n AS mine,
                     l.gone @> jsonb_build_array(jsonb_build_object('o', excluded.owner)) AS dead,
                     jsonb_build_object('o', excluded.owner, 'u', excluded.until, 's', n,
                                        'n', excluded.note, 'c', excluded.chan) AS me,
                     ",
        live!(""),
        " AS live
              FROM (SELECT clock_timestamp() AS n OFFSET 0) c
              OFFSET 0) s1 OFFSET 0) s2 OFFSET 0) s3)
  RETURNING l.owner, l.token, l.until, l.since, l.note, l.chan, l.queue)
SELECT true, owner, token, extract(epoch FROM until - clock_timestamp())::float8,
       extract(epoch FROM clock_timestamp() - since)::float8, note,
       (SELECT min(i) - 1 FROM jsonb_array_elements(queue) WITH ORDINALITY x(e, i)
        WHERE e->>'o' = $2),
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

/// The new contents of row `l` when a claim gives back or withdraws: if it is `$mine`, the first
/// living waiter gets the lock, and the lease of its place becomes the lock's.
macro_rules! hand_over {
    ($mine:literal, $others:literal, $prior:literal, $gone:expr) => {
        concat!(
            "(owner, token, until, since, note, chan, queue, prior, gone) = (
    SELECT CASE WHEN mine THEN w->>'o' ELSE l.owner END,
           CASE WHEN mine AND w IS NOT NULL THEN nextval('@.tenure_token') ELSE l.token END,
           CASE WHEN mine THEN coalesce((w->>'u')::timestamptz, n) ELSE l.until END,
           CASE WHEN mine THEN n ELSE l.since END,
           CASE WHEN mine THEN coalesce(w->>'n', '') ELSE l.note END,
           CASE WHEN mine THEN coalesce(w->>'c', '') ELSE l.chan END,
           CASE WHEN mine THEN live - 0 ELSE live END,
           CASE WHEN mine AND l.until > n THEN ",
            $prior,
            " ELSE l.prior END,
           ",
            $gone,
            "
    FROM (SELECT n, mine, live, live->0 AS w
      FROM (SELECT n, ",
            $mine,
            " AS mine,
                   ",
            live!($others),
            " AS live
            FROM (SELECT clock_timestamp() AS n OFFSET 0) c OFFSET 0) s1 OFFSET 0) s2)"
        )
    };
}

/// Gives back or withdraws; no row if nothing was ours. $1 key, $2 owner.
pub(super) static RELEASE: Sql = Sql {
    text: concat!(
        "WITH r AS (UPDATE @.tenure_lease l SET ",
        hand_over!("coalesce(l.owner = $2, false)", " AND e->>'o' <> $2", "$2", gone!()),
        "
  WHERE l.key = $1
    AND (l.owner = $2 OR l.queue @> jsonb_build_array(jsonb_build_object('o', $2::text)))
  RETURNING l.owner, l.token, l.chan, l.prior)
SELECT prior = $2, CASE WHEN owner IS NOT NULL
       THEN pg_notify(chan, 'grant ' || owner || ' ' || token) END FROM r"
    ),
    types: &[Type::BYTEA, Type::TEXT],
};

/// The same after a request of the claim went unanswered: notes the claim, so that a request which
/// arrives after this takes nothing. $1 key, $2 owner.
pub(super) static RELEASE_DOUBTFUL: Sql = Sql {
    text: concat!(
        "WITH r AS (
  INSERT INTO @.tenure_lease AS l (key, owner, token, until, gone)
  VALUES ($1, NULL, 0, clock_timestamp() + interval '1 minute',
          jsonb_build_array(jsonb_build_object('o', $2::text,
                            'u', clock_timestamp() + interval '1 minute')))
  ON CONFLICT (key) DO UPDATE SET ",
        hand_over!(
            "coalesce(l.owner = $2, false)",
            " AND e->>'o' <> $2",
            "$2",
            concat!(gone!(), " || excluded.gone")
        ),
        "
  RETURNING l.owner, l.token, l.chan, l.prior)
SELECT prior = $2, CASE WHEN owner IS NOT NULL
       THEN pg_notify(chan, 'grant ' || owner || ' ' || token) END FROM r"
    ),
    types: &[Type::BYTEA, Type::TEXT],
};

/// Who has the grant that is to be evicted. $1 key, $2 token.
pub(super) static FIND: Sql = Sql {
    text: "SELECT owner, chan FROM @.tenure_lease \
           WHERE key = $1 AND token = $2 AND owner IS NOT NULL AND until > clock_timestamp()",
    types: &[Type::BYTEA, Type::INT8],
};

/// Ends exactly one grant, as its owner would. $1 key, $2 token.
pub(super) static EVICT: Sql = Sql {
    text: concat!(
        "WITH r AS (UPDATE @.tenure_lease l SET ",
        hand_over!("true", "", "''", gone!()),
        "
  WHERE l.key = $1 AND l.token = $2 AND l.owner IS NOT NULL AND l.until > clock_timestamp()
  RETURNING l.owner, l.token, l.chan)
SELECT CASE WHEN owner IS NOT NULL
       THEN pg_notify(chan, 'grant ' || owner || ' ' || token) END FROM r"
    ),
    types: &[Type::BYTEA, Type::INT8],
};

/// Rings somebody. $1 channel, $2 message.
pub(super) static NOTIFY: Sql =
    Sql { text: "SELECT pg_notify($1, $2)", types: &[Type::TEXT, Type::TEXT] };

/// Extends many, each by itself: a row that another transaction has locked is left out, so that it
/// holds up no other. $1 keys, $2 owners, $3 ttls, $4 tokens. A token that is not NULL has to be
/// that of the grant: the same owner may have another one, if an eviction was undone by a late
/// request.
///
/// For each, in order: whether it was extended, whether it held the lock when the statement began,
/// and whether anybody did. One that held it and was not extended was locked, or has just lost it.
pub(super) static RENEW: Sql = Sql {
    text: "WITH r AS MATERIALIZED (SELECT * FROM unnest($1, $2, $3, $4)
  WITH ORDINALITY AS r(key, owner, ttl, token, i)),
h AS MATERIALIZED (SELECT l.key, r.ttl FROM r JOIN @.tenure_lease l
    ON l.key = r.key AND l.owner = r.owner AND l.token = coalesce(r.token, l.token)
  WHERE l.until > clock_timestamp() FOR NO KEY UPDATE OF l SKIP LOCKED),
u AS (UPDATE @.tenure_lease l
  SET until = greatest(l.until, clock_timestamp() + make_interval(secs => h.ttl))
  FROM h WHERE l.key = h.key RETURNING l.key, l.owner, l.token)
SELECT u.key IS NOT NULL,
       coalesce(l.owner = r.owner AND l.token = coalesce(r.token, l.token)
                AND l.until > clock_timestamp(), false),
       coalesce(l.owner IS NOT NULL AND l.until > clock_timestamp(), false)
FROM r LEFT JOIN u ON u.key = r.key AND u.owner = r.owner AND u.token = coalesce(r.token, u.token)
LEFT JOIN @.tenure_lease l ON l.key = r.key ORDER BY r.i",
    types: &[Type::BYTEA_ARRAY, Type::TEXT_ARRAY, Type::FLOAT8_ARRAY, Type::INT8_ARRAY],
};

/// Extends one whose row is locked by another transaction, and waits for that a little. $1 key,
/// $2 owner, $3 ttl, $4 token, $5 how long.
pub(super) static RENEW_LOCKED: Sql = Sql {
    text: "WITH s AS MATERIALIZED (SELECT set_config('lock_timeout', $5, true))
UPDATE @.tenure_lease l SET until = greatest(l.until, clock_timestamp() + make_interval(secs => $3))
FROM s WHERE l.key = $1 AND l.owner = $2 AND l.token = coalesce($4, l.token)
  AND l.until > clock_timestamp() RETURNING l.owner",
    types: &[Type::BYTEA, Type::TEXT, Type::FLOAT8, Type::INT8, Type::TEXT],
};

macro_rules! list {
    ($scope:literal) => {
        concat!(
            "SELECT key, token, note, extract(epoch FROM until - clock_timestamp())::float8,
  extract(epoch FROM clock_timestamp() - since)::float8,
  ARRAY(SELECT e->>'n' FROM jsonb_array_elements(queue) WITH ORDINALITY x(e, i)
        WHERE (e->>'u')::timestamptz > clock_timestamp() ORDER BY i),
  ARRAY(SELECT extract(epoch FROM clock_timestamp() - (e->>'s')::timestamptz)::float8
        FROM jsonb_array_elements(queue) WITH ORDINALITY x(e, i)
        WHERE (e->>'u')::timestamptz > clock_timestamp() ORDER BY i)
FROM @.tenure_lease WHERE owner IS NOT NULL AND until > clock_timestamp() AND ",
            $scope,
            " ORDER BY key"
        )
    };
}

/// One key. $1 key.
pub(super) static LIST_KEY: Sql = Sql { text: list!("key = $1"), types: &[Type::BYTEA] };

/// Every key from $1 on and before $2, or to the end if that is NULL.
pub(super) static LIST: Sql = Sql {
    text: list!("key >= $1 AND ($2 IS NULL OR key < $2)"),
    types: &[Type::BYTEA, Type::BYTEA],
};
