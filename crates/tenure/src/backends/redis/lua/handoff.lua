-- Handing the lock out, whenever something has changed: a holder or a waiter has left, a lease has
-- ended, an exclusive grant has become shared.

-- With barging the lock is not handed off: waiters compete with newcomers and foreign clients. The
-- first one is told; and where a reader fits, so are all readers, since they hold together.
local function wake_waiters(holder)
  if not holder then publish(free_channel, '0') end
  local first, sequence, _, mode = first_waiter()
  if not first then return end
  if mode == 'x' and not holder then return notify(first, 'l', sequence, '0', 0) end
  if holder and holder ~= MARKERS.s then return end
  local queued = redis.call('ZRANGE', queue, 0, run_max - 1, 'WITHSCORES')
  for i = 1, #queued, 2 do
    local left, waits_for = entry_of(queued[i])
    if left and left > 0 and waits_for ~= 'x' then notify(queued[i], 'l', queued[i + 1], '0', 0) end
  end
end

-- Leaves the lock, which must be free, to foreign clients for a moment, if one of them listens: it
-- cannot join the queue. The window is stored, so that no request of tenure hands the lock off
-- before it is over.
local function leave_window(owner, sequence)
  if row_max == 0 or row < row_max or publish(free_channel, '0') == 0 then return false end
  redis.call('HSET', state, 'row', 0, 'window', whole(now_ms + grace))
  remember(0, last_token)
  notify(owner, 'l', sequence, '0', grace)
  return true
end

-- Grants the first living waiter for as long as it fits beside the holder (the marker, or nil if the
-- lock is free), then the next. The rest
-- of the entry's lease becomes the lock's, so that the waiter knows its end already: it counts from
-- before its last request that got a response, and the entry's deadline was set after that.
--
-- `me` is the owner whose request this is, if it is one of the waiters: it gets a lease of
-- `my_lease` and no message, and its token is returned. A run of readers counts as one handoff in
-- a row. If the run is too long for one script, the next waiter is told to request.
local function hand_off(holder, me, my_lease)
  if barging then return wake_waiters(holder) end
  local mine, row_before = nil, row
  for granted = 0, run_max do
    local owner, sequence, left, mode, info, size = first_waiter()
    if not owner then
      if not holder then publish(free_channel, '0') end
      return mine
    end
    if not fits(holder, mode) then return mine end
    if granted == run_max then
      notify(owner, 'l', sequence, '0', 0)
      return mine
    end
    if owner == me then
      left, row = my_lease, 0
    elseif granted == 0 and not holder and leave_window(owner, sequence) then
      return nil
    else
      row = row_before + 1
    end
    remove_entry(owner)
    local token
    token, holder = grant(holder, owner, left, mode, info, size)
    if owner == me then mine = token else notify(owner, 'g', sequence, token, left) end
    if mode == 'x' then return mine end
  end
end
