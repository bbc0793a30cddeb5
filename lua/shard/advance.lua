-- advance: the heart. Notes what pools have taken, applies a slice of the inbox, fires due timers, returns what became ready.
-- cell: shard
-- keys: owner meta entries_key prefix ...
-- The rest of keys: prefixes of pools on the same server (lib/hand.lua).
-- args: token limit count ...
-- The rest of args, about offers since the last call: `count` attempt ids that their pools have taken, then what else became of some
-- (run.answered).
-- returns: {applied, 1 if the inbox holds more, next timer (ms) or 0, runs in the outbox, offers, ended, stops, next slot (ms) or 0,
--   when to look at a backfill (ms) or -1, when to deliver a hook (ms) or 0}
--   offers {attempt id, pool, terms, its run's creation (ms), …} · ended {dag/run, state, ms, …} · stops {pool/attempt id, …}
-- errors: FENCED
-- cost: O(reports + their direct downstream), at most `limit` reports, an entry more, and 500 steps a call (~10 ms)
-- include: lib/clock.lua
-- include: lib/lease.lua
-- include: lib/inbox.lua
-- include: lib/hand.lua
-- include: lib/timers.lua

local refused = lease.refused(owner, meta, token)
if refused then return refused end
run.begin(prefix, entries_key, clock.now(), true)
run.taken({ unpack(ARGV, 4, 3 + count) })
for i = 4 + count, #ARGV do run.answered(ARGV[i]) end

local begun = call('HGET', meta, 'cursor') or '0-0'
local cursor, more = begun, false
inbox.begin()
local entries = inbox.page(cursor)
while #entries > 0 do
  for _, entry in ipairs(entries) do
    more = run.budget <= 0 or inbox.applied >= tonumber(limit)
    if more then break end
    inbox.apply(entry[1], entry[2])
    run.spread()
    cursor = entry[1]
  end
  more = more or inbox.again
  if more or #entries < inbox.PAGE then break end
  entries = inbox.page(cursor)
end
if cursor ~= begun then
  call('HSET', meta, 'cursor', cursor)
  local ms, seq = match(cursor, '^(%d+)-(%d+)$')
  call('XTRIM', entries_key, 'MINID', ms .. '-' .. format('%d', tonumber(seq) + 1))
end
timers.fire()
run.follow()
hand.over(KEYS, 5, token)
run.write()

local function first(name, none)
  return call('ZRANGE', prefix .. name, 0, 0, 'WITHSCORES')[2] or none
end
-- Most shards have none of these most of the time.
local rare = call('EXISTS', prefix .. 'outbox', prefix .. 'stops', prefix .. 'backfill_look', prefix .. 'hooks') > 0
return { inbox.applied, more and 1 or 0, first('timers', '0'), rare and call('ZCARD', prefix .. 'outbox') or 0, run.offer_list(), run.ended,
  rare and call('SRANDMEMBER', prefix .. 'stops', 100) or {}, first('slots', '0'), rare and first('backfill_look', '-1') or '-1',
  rare and first('hooks', '0') or '0' }
