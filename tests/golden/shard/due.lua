-- The only clock that decides anything shared: Redis' own, in whole milliseconds (numbers over 2^53 would be rounded).
local clock = {}

function clock.now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- The instant at which a stream entry was appended, from its id.
function clock.of_entry(id)
  return tonumber(string.match(id, '^(%d+)'))
end
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
local limit = ARGV[2]
-- due: DAGs whose next slot is due, with what decides about it.
-- cell: shard
-- keys: owner meta prefix
-- args: token limit
-- returns: {now, next look after these (ms) or 0, dag, slot, schedule (JSON), runs queued, runs active, …}
-- errors: FENCED
-- cost: O(limit)
local refused = lease.refused(owner, meta, token)
if refused then return refused end
local now, answer = clock.now(), {}
for _, dag in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'slots', '-inf', now, 'LIMIT', 0, limit)) do
  local v = redis.call('HMGET', prefix .. 'dag:' .. dag, 'slot', 'schedule', 'paused')
  if not v[1] or not v[2] or v[3] == '1' then
    redis.call('ZREM', prefix .. 'slots', dag) -- a paused DAG keeps its slot and is put back when it is resumed
  else
    local i = #answer
    answer[i + 1], answer[i + 2], answer[i + 3] = dag, v[1], v[2]
    answer[i + 4], answer[i + 5] = redis.call('ZCARD', prefix .. 'queue:' .. dag), redis.call('SCARD', prefix .. 'active:' .. dag)
  end
end
local first = redis.call('ZRANGE', prefix .. 'slots', 0, 0, 'WITHSCORES')
table.insert(answer, 1, first[2] or '0')
table.insert(answer, 1, string.format('%d', now))
return answer
