//! The statements of `mode=lease` for keys that are mixed: a holder or a waiter is not exclusive.
//!
//! **Two paths.** A key that only exclusive claims use is changed by the statements of `lease`,
//! which do nothing to a mixed one. The statements here are right for every row, and cost more:
//! they see the holder in the columns as one of the holders, apply the rule of
//! [`Mode`](crate::backend::Mode) to all, and write the row back in the form that its holders need.
//! Both change the row under its lock, and look at the form of the row that they have locked, so
//! that they may meet on one row in any order.
//!
//! **State.** `holders`: the grants that are alive together, the oldest first. An element has what
//! a queue entry has, and its token `t`. Only claims that are not exclusive have `m`, which is 1
//! and marks them, and `w`, the weight; permits have `l`, the limit. `d` is on a grant that was
//! downgraded: how many tokens it owns. `f` is on the grants that the last statement made.
//! - *One exclusive holder* is in the columns `owner`, `token`, `until` … as on every other row,
//!   also while others wait.
//! - *All others* are in `holders`. The row's `owner` is then `~shared` or `~permits`, which is no
//!   claim, `until` the last end of a lease, and `token` the highest that the key has given out.
//!
//! So a client of an earlier version, which knows only the columns, sees a key that is held in
//! whichever mode as held. What is in `holders` counts only while `owner` is a marker: such a
//! client does not clear it when it grants an expired row.
//!
//! **Invariants** are those of `lease`. A run of readers takes its tokens from one draw: the
//! sequence is 1024 further with each, and a run has at most 257. A client acquires in other modes
//! than exclusive only if it found that the sequence is so (see `schema`).
//!
//! The rule itself is in `rule`.

use tokio_postgres::types::Type;

use crate::backends::postgres::connection::statement::Sql;

/// The holders and the queue of row `l` after a claim has been acquired, repeated or queued. In
/// `q`, a claim that does not wait is behind the last one that may stay, for this statement only.
/// `mine`: the claim holds the key; `queued`: it has a queue entry; `cancelled`: it has a
/// tombstone; `other`: the key is in use as the other kind.
macro_rules! after_request {
    () => {
        concat!(
            "SELECT n, false AS ended,
       CASE WHEN mine THEN ",
            replaced!(
                "lh",
                "e->>'o' = $2",
                "e || jsonb_build_object('u', greatest((e->>'u')::timestamptz, excluded.until))"
            ),
            " ELSE lh END AS h,
       CASE WHEN mine OR cancelled OR other OR queued AND NOT $5 THEN lq
            WHEN queued THEN ",
            replaced!(
                "lq",
                "e->>'o' = $2",
                "entry || jsonb_build_object('s', e->'s', \
                 'u', greatest((e->>'u')::timestamptz, excluded.until))"
            ),
            "
            WHEN jsonb_array_length(lq) >= 256 THEN lq ELSE lq || entry END AS q,
       CASE WHEN $5 THEN 1024 ELSE jsonb_array_length(lq) END AS keep
     FROM (SELECT n, lh, lq, lh @> own AS mine, lq @> own AS queued, l.gone @> own AS cancelled,
                  coalesce(((lh || lq)->0 ? 'l') <> ($7::jsonb ? 'l'), false) AS other,
                  $7::jsonb || jsonb_build_object('o', $2, 'u', excluded.until, 's', n, 'n', $4,
                                                  'c', $6) AS entry
       FROM ",
            live!(),
            ", (SELECT jsonb_build_array(jsonb_build_object('o', $2)) AS own OFFSET 0) own
       OFFSET 0) request"
        )
    };
}

/// As [`lease::ACQUIRE`](super::lease::ACQUIRE), for a claim of any mode. $1 key, $2 owner, $3 ttl
/// in seconds, $4 note, $5 whether the claim waits, $6 the client's channel, $7 the mode, as in an
/// element.
///
/// A claim that does not wait and does not fit beside the holders changes nothing: `WHERE` leaves
/// nothing to insert, and the second half of the UNION only reads. `is_current` is then false.
pub(crate) static ACQUIRE: Sql = Sql {
    text: concat!(
        "WITH t AS (
  INSERT INTO @.tenure_lease AS l (key, owner, token, until, note, chan, holders)
  SELECT $1, CASE WHEN NOT x ? 'm' THEN $2 WHEN x ? 'l' THEN '~permits' ELSE '~shared' END, v, u,
         $4, $6, CASE WHEN x ? 'm' THEN jsonb_build_array(x || jsonb_build_object(
           'o', $2, 'u', u, 's', n, 'n', $4, 'c', $6, 't', v)) ELSE '[]' END
  FROM (SELECT nextval('@.tenure_token') AS v, clock_timestamp() AS n,
               clock_timestamp() + make_interval(secs => $3) AS u, $7::jsonb AS x
        WHERE $5 OR NOT EXISTS (SELECT 1 FROM @.tenure_lease h
          WHERE h.key = $1 AND h.owner <> $2 AND h.until > clock_timestamp()
            AND (NOT h.owner ^@ '~' OR (
              SELECT NOT bool_or(e->>'o' = $2) AND (count(*) >= 1024
                OR bool_or((e ? 'l') <> ($7::jsonb ? 'l'))
                OR sum(",
        weight!(),
        ") + coalesce(($7::jsonb->>'w')::bigint, 2147483647)
                     > coalesce(($7::jsonb->>'l')::bigint, 2147483647))
              FROM jsonb_array_elements(h.holders) x(e)
              WHERE (e->>'u')::timestamptz > clock_timestamp())))
        OFFSET 0) s
  ON CONFLICT (key) DO UPDATE SET ",
        serve!(after_request!(), "l.prior", live_tombstones!()),
        "
  RETURNING l.owner, l.token, l.until, l.since, l.note, l.chan, l.queue, l.holders)
SELECT is_current, token, ",
        is_mixed!(),
        " AS is_mixed,
       CASE WHEN owner = $2 THEN token ELSE (SELECT (e->>'t')::bigint
         FROM jsonb_array_elements(lh) x(e) WHERE e->>'o' = $2) END AS own_token,
       coalesce((CASE WHEN is_current THEN lh || queue ELSE lh END->0 ? 'l')
                <> ($7::jsonb ? 'l'), false) AS is_other_kind,
       jsonb_array_length(lh) AS holders, lh->0->>'n' AS note,
       concat_ws(' ', lh->0->>'w', lh->0->>'l') AS mode,
       (lh->0->>'t')::int8 AS holder_token,
       extract(epoch FROM (lh->0->>'u')::timestamptz - n)::float8 AS ttl_left,
       extract(epoch FROM n - (lh->0->>'s')::timestamptz)::float8 AS held_for,
       extract(epoch FROM (SELECT min((e->>'u')::timestamptz) FROM jsonb_array_elements(
         lh || CASE WHEN queue->0->>'o' <> $2 THEN queue->0 ELSE '[]' END) x(e)) - n)::float8
         AS first_end,
       (SELECT min(i) - 1 FROM jsonb_array_elements(queue) WITH ORDINALITY x(e, i)
        WHERE e->>'o' = $2) AS rank,
       CASE WHEN is_current THEN ",
        notify_granted!("$2", "token = currval('@.tenure_token')"),
        " END
FROM (SELECT l.*, n, ",
        live_holders!(),
        " AS lh
  FROM (SELECT true AS is_current, t.* FROM t UNION ALL
        SELECT false, owner, token, until, since, note, chan, queue, holders
        FROM @.tenure_lease WHERE key = $1 AND NOT EXISTS (SELECT 1 FROM t)) l,
       (SELECT clock_timestamp() AS n OFFSET 0) c) l"
    ),
    types: &[Type::BYTEA, Type::TEXT, Type::FLOAT8, Type::TEXT, Type::BOOL, Type::TEXT, Type::TEXT],
};

/// Makes the grant with a token shared, keeps the token, and hands the key off to the readers at
/// the head of the queue. Changes that grant or nothing: `is_held` is whether it is there. $1 key,
/// $2 owner, $3 token, $4 ttl in seconds.
pub(crate) static DOWNGRADE: Sql = Sql {
    text: concat!(
        "WITH r AS (UPDATE @.tenure_lease l SET ",
        serve!(
            concat!(
                "SELECT n, false AS ended, coalesce(",
                replaced!(
                    "lh",
                    "e->>'o' = $2 AND (e->>'t')::bigint = $3",
                    "e || CASE WHEN e ? 'm' THEN '{}'::jsonb \
                     ELSE '{\"m\":1,\"w\":1,\"d\":1024}'::jsonb END \
                     || jsonb_build_object('u', greatest((e->>'u')::timestamptz, \
                                                         n + make_interval(secs => $4)))"
                ),
                ", '[]') AS h, lq AS q, 1024 AS keep FROM ",
                live!()
            ),
            "l.prior",
            live_tombstones!()
        ),
        "
  WHERE l.key = $1 AND (l.owner = $2 AND l.token = $3 OR l.owner ^@ '~'
    AND l.holders @> jsonb_build_array(jsonb_build_object('o', $2::text, 't', $3)))
  RETURNING l.owner, l.token, l.chan, l.queue, l.holders)
SELECT holders @> jsonb_build_array(jsonb_build_object('o', $2::text, 't', $3)) AS is_held, ",
        notify_granted!("$2", "false"),
        " FROM r"
    ),
    types: &[Type::BYTEA, Type::TEXT, Type::INT8, Type::FLOAT8],
};

/// The holders and the queue of row `l` without a claim.
macro_rules! after_release {
    () => {
        concat!(
            "SELECT n, lh @> jsonb_build_array(jsonb_build_object('o', $2::text)) AS ended, ",
            those_of!("lh", "e->>'o' <> $2"),
            " AS h, ",
            those_of!("lq", "e->>'o' <> $2"),
            " AS q, 1024 AS keep FROM ",
            live!()
        )
    };
}

macro_rules! released {
    () => {
        concat!(
            "RETURNING l.owner, l.token, l.chan, l.prior, l.queue, l.holders)
SELECT prior = $2 AS was_held, ",
            is_mixed!(),
            " AS is_mixed, ",
            notify_granted!("$2", "true"),
            " FROM r l"
        )
    };
}

/// As [`lease::RELEASE`](super::lease::RELEASE), for a claim of any mode. $1 key, $2 owner.
pub(crate) static RELEASE: Sql = Sql {
    text: concat!(
        "WITH r AS (UPDATE @.tenure_lease l SET ",
        serve!(after_release!(), "$2", live_tombstones!()),
        "
  WHERE l.key = $1 AND (l.owner = $2
    OR l.queue @> jsonb_build_array(jsonb_build_object('o', $2::text))
    OR l.holders @> jsonb_build_array(jsonb_build_object('o', $2::text)))
  ",
        released!()
    ),
    types: &[Type::BYTEA, Type::TEXT],
};

/// As [`lease::RELEASE_WITH_TOMBSTONE`](super::lease::RELEASE_WITH_TOMBSTONE), for a claim of any
/// mode. $1 key, $2 owner.
pub(crate) static RELEASE_WITH_TOMBSTONE: Sql = Sql {
    text: concat!(
        "WITH r AS (
  INSERT INTO @.tenure_lease AS l (key, owner, token, until, gone)
  VALUES ($1, NULL, 0, clock_timestamp() + interval '1 minute',
          jsonb_build_array(jsonb_build_object('o', $2::text,
                            'u', clock_timestamp() + interval '1 minute')))
  ON CONFLICT (key) DO UPDATE SET ",
        serve!(after_release!(), "$2", concat!(live_tombstones!(), " || excluded.gone")),
        "
  ",
        released!()
    ),
    types: &[Type::BYTEA, Type::TEXT],
};

/// Whether element `e` is the grant that owns the token $2.
macro_rules! owns_token {
    () => {
        "$2 BETWEEN (e->>'t')::bigint AND (e->>'t')::bigint - 1 + coalesce((e->>'d')::bigint, \
         CASE WHEN e ? 'm' THEN 1 ELSE 1024 END)"
    };
}

/// Owner and channel of the grant that owns this token. $1 key, $2 token.
pub(crate) static FIND_GRANT: Sql = Sql {
    text: concat!(
        "SELECT e->>'o' AS owner, e->>'c' AS chan
FROM (SELECT ",
        live_holders!(),
        " AS lh FROM @.tenure_lease l, (SELECT clock_timestamp() AS n OFFSET 0) c
      WHERE l.key = $1) l, jsonb_array_elements(lh) x(e) WHERE ",
        owns_token!()
    ),
    types: &[Type::BYTEA, Type::INT8],
};

/// Ends exactly the grant that owns this token, as its owner would, and spares the other holders.
/// $1 key, $2 token, $3 its owner.
pub(crate) static EVICT: Sql = Sql {
    text: concat!(
        "WITH r AS (UPDATE @.tenure_lease l SET ",
        serve!(
            concat!(
                "SELECT n, true AS ended, ",
                those_of!("lh", concat!("NOT (", owns_token!(), ")")),
                " AS h, lq AS q, 1024 AS keep FROM ",
                live!()
            ),
            "''",
            live_tombstones!()
        ),
        "
  WHERE l.key = $1 AND EXISTS (SELECT 1 FROM (SELECT ",
        live_holders!(),
        " AS lh FROM (SELECT clock_timestamp() AS n OFFSET 0) c OFFSET 0) live,
    jsonb_array_elements(lh) x(e) WHERE e->>'o' = $3 AND ",
        owns_token!(),
        ")
  RETURNING l.owner, l.token, l.chan, l.holders)
SELECT ",
        notify_granted!("$3", "true"),
        " FROM r"
    ),
    types: &[Type::BYTEA, Type::INT8, Type::TEXT],
};
