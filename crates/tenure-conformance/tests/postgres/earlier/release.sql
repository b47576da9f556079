PREPARE earlier_release (bytea, text) AS
WITH r AS (UPDATE public.tenure_lease l SET (owner, token, until, since, note, chan, queue, prior, gone) = (
    SELECT CASE WHEN own THEN w->>'o' ELSE l.owner END,
           CASE WHEN own AND w IS NOT NULL THEN nextval('public.tenure_token') ELSE l.token END,
           CASE WHEN own THEN coalesce((w->>'u')::timestamptz, n) ELSE l.until END,
           CASE WHEN own THEN n ELSE l.since END,
           CASE WHEN own THEN coalesce(w->>'n', '') ELSE l.note END,
           CASE WHEN own THEN coalesce(w->>'c', '') ELSE l.chan END,
           CASE WHEN own THEN live - 0 ELSE live END,
           CASE WHEN own AND l.until > n THEN $2 ELSE l.prior END,
           CASE WHEN l.gone = '[]' THEN l.gone ELSE coalesce((SELECT jsonb_agg(e) FROM jsonb_array_elements(l.gone) g(e) WHERE (e->>'u')::timestamptz > n), '[]') END
    FROM (SELECT n, own, live, live->0 AS w
      FROM (SELECT n, coalesce(l.owner = $2, false) AS own,
                   coalesce((SELECT jsonb_agg(e ORDER BY i) FROM jsonb_array_elements(l.queue) WITH ORDINALITY x(e, i) WHERE (e->>'u')::timestamptz > n AND e->>'o' <> $2), '[]') AS live
            FROM (SELECT clock_timestamp() AS n OFFSET 0) c OFFSET 0) s1 OFFSET 0) s2)
  WHERE l.key = $1
    AND (l.owner = $2 OR l.queue @> jsonb_build_array(jsonb_build_object('o', $2::text)))
  RETURNING l.owner, l.token, l.chan, l.prior)
SELECT prior = $2 AS was_held, CASE WHEN owner IS NOT NULL
       THEN pg_notify(chan, 'grant ' || owner || ' ' || token) END FROM r;
