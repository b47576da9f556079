//! The rule of [`Mode`](crate::backend::Mode) as an expression of SQL, for the statements of
//! `holders`.
//!
//! **The three steps that are easily forgotten** are one expression, `serve`, in every statement:
//! it hands the key to the head of the queue for as long as it fits, also if only a waiter has
//! left, the first of several leases has ended, or a lock was downgraded.

/// The holders of row `l` whose leases have not ended at `n`.
macro_rules! live_holders {
    () => {
        "CASE WHEN l.owner ^@ '~' THEN coalesce((SELECT jsonb_agg(e - 'f' ORDER BY i) \
         FROM jsonb_array_elements(l.holders) WITH ORDINALITY x(e, i) \
         WHERE (e->>'u')::timestamptz > n), '[]') \
         WHEN l.owner IS NOT NULL AND l.until > n THEN jsonb_build_array(jsonb_build_object(\
         'o', l.owner, 'u', l.until, 's', l.since, 'n', l.note, 'c', l.chan, 't', l.token)) \
         ELSE '[]' END"
    };
}

/// The elements `e` of an array that meet a condition, in their order.
macro_rules! those_of {
    ($array:literal, $condition:expr) => {
        concat!(
            "coalesce((SELECT jsonb_agg(e ORDER BY i) FROM jsonb_array_elements(",
            $array,
            ") WITH ORDINALITY x(e, i) WHERE ",
            $condition,
            "), '[]')"
        )
    };
}

/// An array with some of its elements `e` replaced.
macro_rules! replaced {
    ($array:literal, $condition:expr, $by:expr) => {
        concat!(
            "(SELECT jsonb_agg(CASE WHEN ",
            $condition,
            " THEN ",
            $by,
            " ELSE e END ORDER BY i) FROM jsonb_array_elements(",
            $array,
            ") WITH ORDINALITY x(e, i))"
        )
    };
}

/// What element `e` counts against a limit. Exclusive claims have no `w`: they count all of it.
macro_rules! weight {
    () => {
        "coalesce((e->>'w')::bigint, 2147483647)"
    };
}

/// The new contents of row `l`. `$inner` yields the time `n`, the holders `h` and the queue `q` as
/// the caller wants them, how many of the queue may stay (`keep`), and whether a lease `ended` by
/// this; all without anything that has expired. `$prior` is the claim that is noted as the last one
/// to release, `$tombstones` the new contents of that column.
///
/// Subqueries, from the inside: the weight of the holders (`used`); how many waiters fit from the
/// head of the queue on (`k`): the weights up to each are within its limit, they are of the kind
/// that the key is used as, and there are at most 1024 holders; the rest of the queue `r` and the
/// first token (`base`); the holders afterwards, `z`; whether that is one exclusive holder `alone`.
macro_rules! serve {
    ($inner:expr, $prior:literal, $tombstones:expr) => {
        concat!(
            "(owner, token, until, since, note, chan, queue, holders, prior, gone) = (
    SELECT CASE WHEN z = '[]' THEN NULL WHEN alone THEN z->0->>'o'
                WHEN z->0 ? 'l' THEN '~permits' ELSE '~shared' END,
           coalesce(base + k - 1, l.token),
           coalesce((SELECT max((e->>'u')::timestamptz) FROM jsonb_array_elements(z) x(e)), n),
           coalesce((z->0->>'s')::timestamptz, n), coalesce(z->0->>'n', ''),
           coalesce(z->0->>'c', ''), r, CASE WHEN alone THEN '[]' ELSE z END,
           CASE WHEN ended THEN ",
            $prior,
            " ELSE l.prior END,
           ",
            $tombstones,
            "
    FROM (SELECT n, ended, k, base, r, z, jsonb_array_length(z) = 1 AND NOT z->0 ? 'm' AS alone
    FROM (SELECT n, ended, k, base, r, h || coalesce((
        SELECT jsonb_agg(e || jsonb_build_object('t', base + i - 1, 's', n, 'f', 1) ORDER BY i)
        FROM jsonb_array_elements(q) WITH ORDINALITY x(e, i) WHERE i <= k), '[]') AS z
    FROM (SELECT n, ended, h, q, k, ",
            those_of!("q", "i > k AND i <= keep"),
            " AS r, CASE WHEN k > 0 THEN nextval('@.tenure_token') END AS base
    FROM (SELECT n, ended, h, q, keep, (SELECT count(*) FROM (
        SELECT bool_and(used + up_to <= most AND jsonb_array_length(h) + i <= 1024
                        AND permits = ((h || q)->0 ? 'l'))
               OVER (ORDER BY i) AS fits
        FROM (SELECT i, coalesce((e->>'l')::bigint, 2147483647) AS most,
                     e ? 'l' AS permits, sum(",
            weight!(),
            ") OVER (ORDER BY i) AS up_to
              FROM jsonb_array_elements(q) WITH ORDINALITY x(e, i)) w) f WHERE fits) AS k
    FROM (SELECT n, ended, h, q, keep, coalesce((SELECT sum(",
            weight!(),
            ") FROM jsonb_array_elements(h) x(e)), 0) AS used
    FROM (",
            $inner,
            " OFFSET 0) s1 OFFSET 0) s2 OFFSET 0) s3 OFFSET 0) s4 OFFSET 0) s5 OFFSET 0) s6)"
        )
    };
}

/// The time `n`, and the holders `lh` and waiters `lq` of row `l` that have not expired then.
macro_rules! live {
    () => {
        concat!(
            "(SELECT n, ",
            live_holders!(),
            " AS lh, ",
            live_waiters!("n", ""),
            " AS lq FROM (SELECT clock_timestamp() AS n OFFSET 0) c OFFSET 0) live"
        )
    };
}

/// Tells each holder that the statement granted, but not `$but`: the new holders in `holders`, or
/// the one in the columns if `$exclusive`.
macro_rules! notify_granted {
    ($but:literal, $exclusive:literal) => {
        concat!(
            "CASE WHEN owner ^@ '~' THEN (SELECT count(pg_notify(e->>'c',
         'grant ' || (e->>'o') || ' ' || (e->>'t'))) FROM jsonb_array_elements(holders) x(e)
         WHERE e ? 'f' AND e->>'o' <> ",
            $but,
            ") WHEN owner <> ",
            $but,
            " AND ",
            $exclusive,
            " THEN (pg_notify(chan, 'grant ' || owner || ' ' || token) IS NULL)::int::int8 END"
        )
    };
}
