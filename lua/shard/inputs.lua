-- inputs: the results of settled upstream tasks, each from the attempt that settled it.
-- cell: shard
-- keys: prefix
-- args: dag run_id ...
-- The rest of args: task indexes.
-- returns: one JSON text an index, '' for none
-- errors: NOTFOUND
-- cost: O(indexes)
-- include: lib/record.lua
local key = prefix .. 'run:' .. dag .. ':' .. run_id
if redis.call('EXISTS', key) == 0 then return redis.error_reply('NOTFOUND run ' .. run_id .. ' of DAG ' .. dag) end
local results = {}
for i = 3, #ARGV do
  local rec = record.decode(redis.call('HGET', key, ARGV[i]))
  results[i - 2] = rec and rec.state == 's'
    and redis.call('HGET', prefix .. 'results:' .. dag .. ':' .. run_id, ARGV[i] .. '.' .. string.format('%d', rec.attempt)) or ''
end
return results
