-- advance: the heart. Notes what pools have taken, applies a slice of the inbox, fires due timers, returns what became ready.
-- cell: shard
-- keys: owner meta entries_key prefix
-- args: token limit ...
-- The rest of args: attempt ids that their pools have taken since the last call (they become `queued`).
-- returns: {applied, 1 if the inbox holds more, next timer (ms) or 0, runs in the outbox, offers, ended, stops, next slot (ms) or 0,
--   when to look at a backfill (ms) or -1, when to deliver a hook (ms) or 0}
--   offers {attempt id, pool, slots, priority, group, weight, payload, its run's creation (ms), …} · ended {dag/run, state, ms, …} · stops {pool/attempt id, …}
-- errors: FENCED
-- cost: O(entries + their direct downstream), at most `limit` entries and 1000 steps a call (~10 ms)
-- include: lib/clock.lua
-- include: lib/lease.lua
-- include: lib/inbox.lua
-- include: lib/timers.lua

local refused = lease.refused(owner, meta, token)
if refused then return refused end
run.begin(prefix, entries_key, clock.now())
for i = 3, #ARGV do run.queued(ARGV[i]) end

local cursor, applied = redis.call('HGET', meta, 'cursor') or '0-0', 0
local entries = redis.call('XRANGE', entries_key, '(' .. cursor, '+', 'COUNT', limit)
for _, entry in ipairs(entries) do
  if run.budget <= 0 then break end
  inbox.apply(entry[1], entry[2])
  run.spread()
  cursor, applied = entry[1], applied + 1
end
if applied > 0 then
  redis.call('HSET', meta, 'cursor', cursor)
  local ms, seq = string.match(cursor, '^(%d+)-(%d+)$')
  redis.call('XTRIM', entries_key, 'MINID', ms .. '-' .. string.format('%d', tonumber(seq) + 1))
end
timers.fire()
run.finish()

local function first(name, none)
  return redis.call('ZRANGE', prefix .. name, 0, 0, 'WITHSCORES')[2] or none
end
local more = (#entries == tonumber(limit) or applied < #entries) and 1 or 0
return { applied, more, first('timers', '0'), redis.call('ZCARD', prefix .. 'outbox'), run.offers, run.ended,
  redis.call('SRANDMEMBER', prefix .. 'stops', 100), first('slots', '0'), first('backfill_look', '-1'), first('hooks', '0') }
