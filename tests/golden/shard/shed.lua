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
-- shed: what another shard has adopted goes from this one.
-- cell: shard
-- keys: owner meta prefix
-- args: token ...
-- The rest, three a thing: kind, name, member. Kinds: hash | set | zset | key (all of it, and '' for the member).
-- flags: flags=allow-oom
-- returns: how many
-- errors: FENCED
-- cost: O(things)
local refused = lease.refused(owner, meta, token)
if refused then return refused end
for i = 2, #ARGV, 3 do
  local kind, key, member = ARGV[i], prefix .. ARGV[i + 1], ARGV[i + 2]
  if kind == 'hash' then
    redis.call('HDEL', key, member)
  elseif kind == 'set' then
    redis.call('SREM', key, member)
  elseif kind == 'zset' then
    redis.call('ZREM', key, member)
  else
    redis.call('UNLINK', key)
  end
end
return (#ARGV - 1) / 3
