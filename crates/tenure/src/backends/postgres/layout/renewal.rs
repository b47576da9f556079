//! The statements that renew leases of `mode=lease`: of holders that are in the columns of their
//! row (exclusive ones), and of those in `holders` (see `holders`).
//!
//! Where a grant is may change while its claim does not know: a downgrade moves it, and a client of
//! an earlier version may have granted a reader's queue entry as if it were exclusive. So each says
//! whether the row has the other form (`is_elsewhere`).

use tokio_postgres::types::Type;

use crate::backends::postgres::connection::statement::Sql;

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
       coalesce(l.owner IS NOT NULL AND l.until > clock_timestamp(), false) AS is_taken,
       coalesce(l.owner ^@ '~' AND l.until > clock_timestamp(), false) AS is_elsewhere
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

/// Whether element `e` is a grant of the owner `$owner` that has not ended at `$clock`. A token
/// that is not NULL has to be its token.
macro_rules! is_grant_of {
    ($owner:literal, $token:literal, $clock:literal) => {
        concat!(
            "e->>'o' = ",
            $owner,
            " AND (e->>'t')::bigint = coalesce(",
            $token,
            ", (e->>'t')::bigint) AND (e->>'u')::timestamptz > ",
            $clock
        )
    };
}

/// Whether an array has a grant of claim `r`.
macro_rules! has_grant {
    ($array:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM jsonb_array_elements(",
            $array,
            ") x(e) WHERE ",
            is_grant_of!("r.owner", "r.token", "clock_timestamp()"),
            ")"
        )
    };
}

/// The columns `holders` and `until` of row `l` after a renewal. `$ttl` is the ttl with which
/// element `e` is renewed at the time `n`, or NULL.
macro_rules! renewed_holders {
    ($ttl:expr) => {
        concat!(
            "(holders, until) = (
    SELECT jsonb_agg(CASE WHEN ttl IS NULL THEN e ELSE e || jsonb_build_object(
             'u', greatest((e->>'u')::timestamptz, n + make_interval(secs => ttl))) END ORDER BY i),
           greatest(l.until, max(n + make_interval(secs => ttl)))
    FROM (SELECT e, i, n, ",
            $ttl,
            " AS ttl FROM (SELECT clock_timestamp() AS n OFFSET 0) c,
          jsonb_array_elements(l.holders) WITH ORDINALITY x(e, i) OFFSET 0) s)"
        )
    };
}

/// As [`RENEW`], for grants in `holders`. A row may have several of one client: it is written once.
pub(crate) static RENEW_HOLDERS: Sql = Sql {
    text: concat!(
        "WITH r AS MATERIALIZED (SELECT * FROM unnest($1, $2, $3, $4)
  WITH ORDINALITY AS r(key, owner, ttl, token, i)),
h AS MATERIALIZED (SELECT l.key, g.owners, g.ttls, g.tokens
  FROM (SELECT key, array_agg(owner) AS owners, array_agg(ttl) AS ttls, array_agg(token) AS tokens
        FROM r GROUP BY key) g
  JOIN @.tenure_lease l ON l.key = g.key
  WHERE l.owner ^@ '~' AND l.until > clock_timestamp() FOR NO KEY UPDATE OF l SKIP LOCKED),
u AS (UPDATE @.tenure_lease l SET ",
        renewed_holders!(concat!(
            "(SELECT max(y.ttl) FROM unnest(h.owners, h.ttls, h.tokens) y(owner, ttl, token)
            WHERE ",
            is_grant_of!("y.owner", "y.token", "n"),
            ")"
        )),
        "
  FROM h WHERE l.key = h.key RETURNING l.key, l.holders)
SELECT coalesce(u.key IS NOT NULL AND ",
        has_grant!("u.holders"),
        ", false) AS renewed,
       coalesce(CASE WHEN l.owner ^@ '~' THEN ",
        has_grant!("l.holders"),
        " END, false) AS was_held,
       coalesce(NOT l.owner ^@ '~' AND l.until > clock_timestamp(), false) AS is_taken,
       coalesce(l.owner = r.owner AND l.until > clock_timestamp(), false) AS is_elsewhere
FROM r LEFT JOIN u ON u.key = r.key
LEFT JOIN @.tenure_lease l ON l.key = r.key ORDER BY r.i"
    ),
    types: &[Type::BYTEA_ARRAY, Type::TEXT_ARRAY, Type::FLOAT8_ARRAY, Type::INT8_ARRAY],
};

/// As [`RENEW_LOCKED`], for a grant in `holders`. $1 key, $2 owner, $3 ttl, $4 token, $5 how long
/// to wait.
pub(crate) static RENEW_HOLDER_LOCKED: Sql = Sql {
    text: concat!(
        "WITH s AS MATERIALIZED (SELECT set_config('lock_timeout', $5, true)),
u AS (UPDATE @.tenure_lease l SET ",
        renewed_holders!(concat!("CASE WHEN ", is_grant_of!("$2", "$4", "n"), " THEN $3 END")),
        "
  FROM s WHERE l.key = $1 AND l.owner ^@ '~'
    AND l.holders @> jsonb_build_array(jsonb_build_object('o', $2::text))
  RETURNING l.holders)
SELECT e->>'o' FROM u, jsonb_array_elements(holders) x(e) WHERE ",
        is_grant_of!("$2", "$4", "clock_timestamp()")
    ),
    types: &[Type::BYTEA, Type::TEXT, Type::FLOAT8, Type::INT8, Type::TEXT],
};
