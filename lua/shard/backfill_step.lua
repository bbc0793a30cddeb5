-- backfill_step: the next runs of a backfill, and its cursor in the same step.
-- cell: shard
-- keys: owner meta inbox prefix ...
-- The rest of keys: prefixes of pools on the same server (lib/hand.lua).
-- args: token dag id expected cursor look ...
-- expected: the cursor that this was planned from; cursor: where it goes on (ms), '' when all dates are dealt with; look: when to
-- look again (ms). The rest, two a date: logical date (ms), run id.
-- returns: {OK | CHANGED, offers, dates that had a run already: {ms, run id, its state, …}}
-- errors: FENCED
-- cost: O(runs and their roots)
-- include: lib/clock.lua
-- include: lib/lease.lua
-- include: lib/create.lua
-- include: lib/hand.lua
local refused = lease.refused(owner, meta, token)
if refused then return refused end
run.begin(prefix, inbox, clock.now(), true)
local key, runs = prefix .. 'backfill:' .. dag .. ':' .. id, prefix .. 'backfill_runs:' .. dag .. ':' .. id
local v = redis.call('HMGET', key, 'state', 'cursor', 'params', 'keys')
local d = run.dag(dag)
if not d or d.deleted or v[1] ~= 'running' or (v[2] or '') ~= expected then return { 'CHANGED', {}, {} } end
local existing, made, skipped = {}, 0, 0
for i = 7, #ARGV, 2 do
  local answer = create.run(d, ARGV[i + 1], 'backfill', ARGV[i], v[3] or '', 'backfill ' .. id, v[4] or '')
  if answer[1] == 'CREATED' then
    redis.call('SADD', runs, answer[3])
    redis.call('HSET', run.key('run', dag, answer[3]), 'backfill', id)
    made = made + 1
  else
    existing[#existing + 1], existing[#existing + 2], existing[#existing + 3] = ARGV[i], answer[3], answer[2]
    skipped = skipped + 1
  end
end
if made > 0 then redis.call('HINCRBY', key, 'made', made) end
if skipped > 0 then redis.call('HINCRBY', key, 'existing', skipped) end
redis.call('HSET', key, 'cursor', cursor)
if cursor == '' and redis.call('SCARD', runs) == 0 then
  redis.call('HSET', key, 'state', 'done', 'ended', run.now)
  redis.call('ZREM', prefix .. 'backfill_look', dag .. '/' .. id)
else
  redis.call('ZADD', prefix .. 'backfill_look', look, dag .. '/' .. id)
end
run.follow()
hand.over(KEYS, 5, token)
run.write()
return { 'OK', run.offer_list(), existing }
