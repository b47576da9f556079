PREPARE earlier_acquire (bytea, text, float8, text, bool, text) AS
WITH t AS (
  INSERT INTO public.tenure_lease AS l (key, owner, token, until, note, chan)
  SELECT $1, $2, nextval('public.tenure_token'), clock_timestamp() + make_interval(secs => $3), $4, $6
  WHERE $5 OR NOT EXISTS (SELECT 1 FROM public.tenure_lease h
    WHERE h.key = $1 AND h.owner <> $2 AND h.until > clock_timestamp())
  ON CONFLICT (key) DO UPDATE SET (owner, token, until, since, note, chan, queue, gone) = (
    SELECT CASE WHEN held THEN l.owner ELSE w->>'o' END,
           CASE WHEN held OR w IS NULL THEN l.token ELSE nextval('public.tenure_token') END,
           CASE WHEN own THEN greatest(l.until, excluded.until) WHEN held THEN l.until
                ELSE coalesce((w->>'u')::timestamptz, n) END,
           CASE WHEN held THEN l.since ELSE n END,
           CASE WHEN held THEN l.note ELSE coalesce(w->>'n', '') END,
           CASE WHEN held THEN l.chan ELSE coalesce(w->>'c', '') END,
           CASE WHEN held THEN q ELSE q - 0 END,
           CASE WHEN l.gone = '[]' THEN l.gone ELSE coalesce((SELECT jsonb_agg(e) FROM jsonb_array_elements(l.gone) g(e) WHERE (e->>'u')::timestamptz > n), '[]') END
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
                     coalesce((SELECT jsonb_agg(e ORDER BY i) FROM jsonb_array_elements(l.queue) WITH ORDINALITY x(e, i) WHERE (e->>'u')::timestamptz > n), '[]') AS live
              FROM (SELECT clock_timestamp() AS n OFFSET 0) c
              OFFSET 0) s1 OFFSET 0) s2 OFFSET 0) s3)
  RETURNING l.owner, l.token, l.until, l.since, l.note, l.chan, l.queue)
SELECT true AS is_current, owner, token,
       extract(epoch FROM until - clock_timestamp())::float8 AS ttl_left,
       extract(epoch FROM clock_timestamp() - since)::float8 AS held_for, note,
       (SELECT min(i) - 1 FROM jsonb_array_elements(queue) WITH ORDINALITY x(e, i)
        WHERE e->>'o' = $2) AS rank,
       CASE WHEN owner <> $2 AND token = currval('public.tenure_token')
            THEN pg_notify(chan, 'grant ' || owner || ' ' || token) END
FROM t
UNION ALL
SELECT false, owner, token, extract(epoch FROM until - clock_timestamp())::float8,
       extract(epoch FROM clock_timestamp() - since)::float8, note, NULL, NULL
FROM public.tenure_lease WHERE key = $1 AND NOT EXISTS (SELECT 1 FROM t);
