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
-- A cell is shut while shards are being moved, and for good if it is none any more: then `closed` says "from to", or "to".
local shut = {}

-- The refusal of everybody but schedulers, whom their fence refuses; nil if the cell is open.
function shut.refused(prefix)
  local word = redis.call('GET', prefix .. 'closed')
  return word and redis.error_reply('RESHARDED ' .. word) or nil
end
local prefix = KEYS[1]
local dag = ARGV[1]
local run_id = ARGV[2]
local packed = ARGV[3]
local fields = ARGV[4]
-- unpack_run: a packed run becomes a live hash again, so that it can be edited; its owner packs it again later.
-- cell: shard
-- keys: prefix
-- args: dag run_id packed fields ...
-- packed: the value that was read; fields: how many of the rest belong to the run, the others to its tries.
-- returns: 1, or 0 if it is not packed like that any more
-- errors: RESHARDED
-- cost: O(its tasks)
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
