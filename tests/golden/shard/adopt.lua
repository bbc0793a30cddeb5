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
-- adopt: what lies in another shard comes here, a member at a time. Said twice it writes the same.
-- cell: shard
-- keys: owner meta prefix
-- args: token ...
-- The rest, four a thing: kind, name, field, value. Kinds: string ('', value) | hash (field, value) | set ('', member)
-- | zset (score, member) | list ('', all of it as JSON) | ttl ('', seconds).
-- returns: how many
-- errors: FENCED
-- cost: O(bytes)
local refused = lease.refused(owner, meta, token)
if refused then return refused end
for i = 2, #ARGV, 4 do
  local kind, key, field, value = ARGV[i], prefix .. ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if kind == 'string' then
    redis.call('SET', key, value)
  elseif kind == 'hash' then
    redis.call('HSET', key, field, value)
  elseif kind == 'set' then
    redis.call('SADD', key, value)
  elseif kind == 'zset' then
    redis.call('ZADD', key, field, value)
  elseif kind == 'ttl' then
    redis.call('EXPIRE', key, value)
  else
    redis.call('DEL', key)
    for _, item in ipairs(cjson.decode(value)) do redis.call('RPUSH', key, item) end
  end
end
return (#ARGV - 1) / 4
