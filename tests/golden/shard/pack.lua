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
-- pack: finished runs become one compressed value each. A run that a person edited in the meantime, or that is being edited, stays as it is.
-- cell: shard
-- keys: owner meta prefix
-- args: token ...
-- The rest of args: dag, run id, packed value, digest of what was packed (`ended`, its number of fields, `edits`), and again.
-- returns: number packed
-- errors: FENCED
-- cost: O(runs)
local refused = lease.refused(owner, meta, token)
if refused then return refused end
local packed = 0
for i = 2, #ARGV, 4 do
  local dag, run_id = ARGV[i], ARGV[i + 1]
  local tail = dag .. ':' .. run_id
  local key = prefix .. 'run:' .. tail
  local v = redis.call('HMGET', key, 'state', 'ended', 'edits', 'frozen')
  local name = dag
  local generation = redis.call('HGET', prefix .. 'dag:' .. dag, 'generation')
  if generation and generation ~= '0' then name = dag .. '~' .. generation end
  local ended = v[1] and v[1] ~= 'running' and v[1] ~= 'queued'
  local same = ended and not v[4] and v[2] .. '/' .. redis.call('HLEN', key) .. '/' .. (v[3] or '') == ARGV[i + 3]
  if same then
    redis.call('HSET', prefix .. 'packed:' .. dag, run_id, ARGV[i + 2])
    redis.call('DEL', key, prefix .. 'ready:' .. tail, prefix .. 'tries:' .. tail, prefix .. 'once:' .. tail)
    packed = packed + 1
  end
  if same or not ended then redis.call('ZREM', prefix .. 'ended', name .. '/' .. run_id) end
end
return packed
