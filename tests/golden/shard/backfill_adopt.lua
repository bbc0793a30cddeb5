#!lua
local owner = KEYS[1]
local meta = KEYS[2]
local prefix = KEYS[3]
local token = ARGV[1]
local dag = ARGV[2]
local id = ARGV[3]
local run_id = ARGV[4]
-- backfill_adopt: a run that exists, and is to run again for a backfill, becomes one of its runs.
-- cell: shard
-- keys: owner meta prefix
-- args: token dag id run_id
-- returns: 1, or 0 if the run is not live (packed, or gone), or belongs to it already
-- errors: FENCED
-- cost: O(1)
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

local refused = lease.refused(owner, meta, token)
if refused then return refused end
local key = prefix .. 'run:' .. dag .. ':' .. run_id
local head = redis.call('HGET', key, 'head')
if not head then return 0 end
redis.call('HSET', key, 'head', (string.gsub(head, '^(%d+,%w+),%a+,', '%1,backfill,')), 'backfill', id)
return redis.call('SADD', prefix .. 'backfill_runs:' .. dag .. ':' .. id, run_id)
