-- once: claim a named step for all attempts at a task; only the current attempt may claim, and only the claimer may undo.
-- cell: shard
-- keys: prefix
-- args: id name nonce undo
-- returns: 1 if the caller holds the claim (for undo: had held it), else 0
-- errors: NOTFOUND (the attempt is not the current one), RESHARDED
-- cost: O(1)
-- include: lib/record.lua
-- include: lib/ids.lua
-- include: lib/shut.lua
local closed = shut.refused(prefix)
if closed then return closed end
local dag, run_id, index, attempt = ids.current(prefix, id)
local rec = dag and record.decode(redis.call('HGET', prefix .. 'run:' .. dag .. ':' .. run_id, index))
if not rec or rec.attempt ~= tonumber(attempt) or not record.LIVE[rec.state] then
  return redis.error_reply('NOTFOUND attempt ' .. id .. ' is not the current one')
end
local key, field = prefix .. 'once:' .. dag .. ':' .. run_id, index .. '/' .. name
local claim = attempt .. ':' .. nonce
local holder = redis.call('HGET', key, field)
if undo == '1' then
  if holder ~= claim then return 0 end
  redis.call('HDEL', key, field)
  return 1
end
if holder then return holder == claim and 1 or 0 end
redis.call('HSET', key, field, claim)
return 1
