-- What the URL says. It is a part of the text, so that no request has to carry it: `memory`, in ms,
-- is how long a token is remembered; `row_max` how many handoffs in a row there are before foreign
-- clients get a chance (0: no limit, -1: barging, the first request wins); `grace`, in ms, how long
-- that chance lasts. `range_size` tokens belong to an exclusive grant; `run_max` waiters are granted
-- by one script at most.
local memory, row_max, grace = $memory, $row_max, $grace
local barging = row_max < 0
local range_size, run_max = $range_size, $run_max
-- The server's clock, once it was read.
local time
