-- backfill_adopt: a run that exists, and is to run again for a backfill, becomes one of its runs; or is let go, as it can't.
-- cell: shard
-- keys: owner meta prefix
-- args: token dag id run_id wanted
-- wanted: 1 to adopt, 0 to let go
-- returns: 1 if it belongs to the backfill now and has not run again for it, else 0: it has, or it is not live (packed, or gone)
-- errors: FENCED
-- cost: O(1)
-- include: lib/lease.lua
local refused = lease.refused(owner, meta, token)
if refused then return refused end
local key, runs = prefix .. 'run:' .. dag .. ':' .. run_id, prefix .. 'backfill_runs:' .. dag .. ':' .. id
local v = redis.call('HMGET', key, 'head', 'backfill')
if wanted == '0' then
  redis.call('SREM', runs, run_id)
  return 0
end
if not v[1] then return 0 end
-- A run leaves the set when it ends, but keeps the name: so a step that is done again runs nothing twice.
if v[2] == id then return redis.call('SISMEMBER', runs, run_id) end
redis.call('HSET', key, 'head', (string.gsub(v[1], '^(%d+,%w+),%a+,', '%1,backfill,')), 'backfill', id)
return redis.call('SADD', runs, run_id)
