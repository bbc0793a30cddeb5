-- backfill_adopt: a run that exists, and is to run again for a backfill, becomes one of its runs.
-- cell: shard
-- keys: owner meta prefix
-- args: token dag id run_id
-- returns: 1, or 0 if the run is not live (packed, or gone), or belongs to it already
-- errors: FENCED
-- cost: O(1)
-- include: lib/lease.lua
local refused = lease.refused(owner, meta, token)
if refused then return refused end
local key = prefix .. 'run:' .. dag .. ':' .. run_id
local head = redis.call('HGET', key, 'head')
if not head then return 0 end
redis.call('HSET', key, 'head', (string.gsub(head, '^(%d+,%w+),%a+,', '%1,backfill,')), 'backfill', id)
return redis.call('SADD', prefix .. 'backfill_runs:' .. dag .. ':' .. id, run_id)
