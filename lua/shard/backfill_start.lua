-- backfill_start: a backfill comes into being; its runs come one by one, as its own limit and the DAG's allow.
-- cell: shard
-- keys: prefix inbox
-- args: dag id first last ...
-- first, last: its logical dates (ms), inclusive. The rest: fields of its hash, name and value.
-- returns: {OK | EXISTS, id}: EXISTS names an active backfill of the DAG whose range overlaps
-- errors: NOTFOUND, RESHARDED
-- cost: O(backfills of the DAG that are active)
-- include: lib/clock.lua
-- include: lib/shut.lua
local closed = shut.refused(prefix)
if closed then return closed end
if redis.call('EXISTS', prefix .. 'dag:' .. dag) == 0 then return redis.error_reply('NOTFOUND DAG ' .. dag) end
for _, other in ipairs(redis.call('ZRANGE', prefix .. 'backfills:' .. dag, 0, -1)) do
  local v = redis.call('HMGET', prefix .. 'backfill:' .. dag .. ':' .. other, 'state', 'first', 'last')
  local active = v[1] == 'running' or v[1] == 'paused'
  if other ~= id and active and tonumber(v[2]) <= tonumber(last) and tonumber(v[3]) >= tonumber(first) then return { 'EXISTS', other } end
end
local key = prefix .. 'backfill:' .. dag .. ':' .. id
if redis.call('EXISTS', key) == 1 then return { 'OK', id } end
local now = string.format('%d', clock.now())
redis.call('HSET', key, 'state', 'running', 'created', now, 'first', first, 'last', last, unpack(ARGV, 5))
redis.call('ZADD', prefix .. 'backfills:' .. dag, now, id)
redis.call('ZADD', prefix .. 'backfill_look', 0, dag .. '/' .. id)
redis.call('XADD', inbox, '*', 'kind', 'limits', 'id', dag)
return { 'OK', id }
