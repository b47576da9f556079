PREPARE earlier_renew (bytea[], text[], float8[], int8[]) AS
WITH r AS MATERIALIZED (SELECT * FROM unnest($1, $2, $3, $4)
  WITH ORDINALITY AS r(key, owner, ttl, token, i)),
h AS MATERIALIZED (SELECT l.key, r.ttl FROM r JOIN public.tenure_lease l
    ON l.key = r.key AND l.owner = r.owner AND l.token = coalesce(r.token, l.token)
  WHERE l.until > clock_timestamp() FOR NO KEY UPDATE OF l SKIP LOCKED),
u AS (UPDATE public.tenure_lease l
  SET until = greatest(l.until, clock_timestamp() + make_interval(secs => h.ttl))
  FROM h WHERE l.key = h.key RETURNING l.key, l.owner, l.token)
SELECT u.key IS NOT NULL AS renewed,
       coalesce(l.owner = r.owner AND l.token = coalesce(r.token, l.token)
                AND l.until > clock_timestamp(), false) AS was_held,
       coalesce(l.owner IS NOT NULL AND l.until > clock_timestamp(), false) AS is_taken
FROM r LEFT JOIN u ON u.key = r.key AND u.owner = r.owner AND u.token = coalesce(r.token, u.token)
LEFT JOIN public.tenure_lease l ON l.key = r.key ORDER BY r.i;
