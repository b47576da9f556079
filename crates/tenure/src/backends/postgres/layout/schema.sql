-- For `?schema=NAME`: make that schema, and write its name for `public`, as `sed s/public/NAME/` does.

-- Fencing tokens. No cache: a cache hands out blocks per connection, out of order.
CREATE SEQUENCE IF NOT EXISTS public.tenure_token AS bigint INCREMENT BY 1024 CACHE 1 NO CYCLE;

-- mode=lease: one row per key, with its queue inside, so that both are always seen together.
CREATE TABLE IF NOT EXISTS public.tenure_lease (
  key   bytea PRIMARY KEY,               -- raw bytes: no collation can mix two keys up
  owner text,                            -- the claim that holds it; ~shared, ~permits: see holders; NULL = free
  token bigint NOT NULL,
  until timestamptz NOT NULL,            -- end of the lease on the database's clock
  since timestamptz NOT NULL DEFAULT clock_timestamp(),
  note  text NOT NULL DEFAULT '',        -- description of the holder, for operators
  chan  text NOT NULL DEFAULT '',        -- NOTIFY channel of the holder's client
  queue jsonb NOT NULL DEFAULT '[]',     -- waiters in order: o(wner) u(ntil) s(ince) n(ote) c(hannel)
                                         -- and m(ark) w(eight) l(imit) of those that are not exclusive
  gone  jsonb NOT NULL DEFAULT '[]',     -- tombstones: cancelled claims whose late requests are refused
  prior text NOT NULL DEFAULT ''         -- the claim that released it last
) WITH (fillfactor = 70);                -- room for updates in place; no second index on purpose
-- A queue of some hundred waiters stays in its row instead of being moved out at every change.
ALTER TABLE public.tenure_lease ALTER COLUMN queue SET STORAGE MAIN;

-- What earlier versions did not have. Neither rewrites the table.
-- Holders that are not exclusive, the oldest first: as in queue, and t(oken).
ALTER TABLE public.tenure_lease ADD COLUMN IF NOT EXISTS holders jsonb NOT NULL DEFAULT '[]';
ALTER TABLE public.tenure_lease ALTER COLUMN holders SET STORAGE MAIN;
-- Each grant owns 1024 tokens. After the table: clients lock both in this order.
ALTER SEQUENCE public.tenure_token INCREMENT BY 1024;

-- mode=session and mode=row: who holds and who waits. The locks themselves are not in here.
CREATE TABLE IF NOT EXISTS public.tenure_board (
  mode    text NOT NULL,
  key     bytea NOT NULL,
  owner   text,
  token   bigint NOT NULL DEFAULT 0,
  pid     integer NOT NULL DEFAULT 0,    -- the server process whose session holds the lock
  number  bigint NOT NULL DEFAULT 0,     -- mode=session: the advisory lock
  ttl     double precision NOT NULL DEFAULT 0,
  since   timestamptz NOT NULL DEFAULT clock_timestamp(),
  note    text NOT NULL DEFAULT '',
  chan    text NOT NULL DEFAULT '',
  queue   jsonb NOT NULL DEFAULT '[]',
  PRIMARY KEY (mode, key)
) WITH (fillfactor = 70);
ALTER TABLE public.tenure_board ALTER COLUMN queue SET STORAGE MAIN;

-- mode=row: the rows that are locked.
CREATE TABLE IF NOT EXISTS public.tenure_row (
  key bytea PRIMARY KEY
);
