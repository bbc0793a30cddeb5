-- Who may write in a shard. `owner` holds "scheduler:fence"; the fence counter has no expiry, so it outlives every owner.
-- An owner's time limit is its one heartbeat in the control cell; here only identity counts.
local lease = {}

-- The refusal that every scheduler script begins with: nil if the caller owns the shard.
function lease.refused(owner, meta, token)
  local current = redis.call('GET', owner)
  if current == token then return nil end
  redis.call('HINCRBY', meta, 'refused', 1)
  return redis.error_reply('FENCED ' .. token .. ' is not the owner; ' .. (current or 'nobody') .. ' is')
end
local owner = KEYS[1]
local meta = KEYS[2]
local prefix = KEYS[3]
local token = ARGV[1]
local dag = ARGV[2]
local id = ARGV[3]
local run_id = ARGV[4]
local wanted = ARGV[5]
-- backfill_adopt: a run that exists, and is to run again for a backfill, becomes one of its runs; or is let go, as it can't.
-- cell: shard
-- keys: owner meta prefix
-- args: token dag id run_id wanted
-- wanted: 1 to adopt, 0 to let go
-- returns: 1 if it belongs to the backfill now and has not run again for it, else 0: it has, or it is not live (packed, or gone)
-- errors: FENCED
-- cost: O(1)
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
