-- unpack_run: a packed run becomes a live hash again, so that it can be edited; its owner packs it again later.
-- cell: shard
-- keys: prefix
-- args: dag run_id packed fields ...
-- packed: the value that was read; fields: how many of the rest belong to the run, the others to its tries.
-- returns: 1, or 0 if it is not packed like that any more
-- errors: RESHARDED
-- cost: O(its tasks)
-- include: lib/clock.lua
-- include: lib/shut.lua
local closed = shut.refused(prefix)
if closed then return closed end
local key = prefix .. 'packed:' .. dag
if redis.call('HGET', key, run_id) ~= packed then return 0 end
local tail = dag .. ':' .. run_id
local split = 4 + tonumber(fields)
for i = 5, #ARGV, 2 do
  redis.call('HSET', prefix .. (i <= split and 'run:' or 'tries:') .. tail, ARGV[i], ARGV[i + 1])
end
redis.call('HDEL', key, run_id)
local generation = redis.call('HGET', prefix .. 'dag:' .. dag, 'generation')
local name = (generation and generation ~= '0') and dag .. '~' .. generation or dag
redis.call('ZADD', prefix .. 'ended', string.format('%d', clock.now()), name .. '/' .. run_id)
return 1
