-- shed: what another shard has adopted goes from this one.
-- cell: shard
-- keys: owner meta prefix
-- args: token ...
-- The rest, three a thing: kind, name, member. Kinds: hash | set | zset | key (all of it, and '' for the member).
-- flags: flags=allow-oom
-- returns: how many
-- errors: FENCED
-- cost: O(things)
-- include: lib/lease.lua
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
