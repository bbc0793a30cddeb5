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
local workers = KEYS[1]
local worker_info = KEYS[2]
local worker_numbers = KEYS[3]
local worker_names = KEYS[4]
local worker = ARGV[1]
local ttl_ms = ARGV[2]
local info = ARGV[3]
-- worker_beat: a worker says that it lives. It gets a small number, stable for its name, which stands for it in records.
-- cell: control
-- keys: workers worker_info worker_numbers worker_names
-- args: worker ttl_ms info
-- info: '' if nothing has changed since it was last said, which is cheaper.
-- returns: its number, 0 for "as before", -1 for "not known (any more): say it all"
-- errors: none
-- cost: O(log workers)
local now = clock.now()
if info == '' then return redis.call('ZADD', workers, 'XX', 'CH', string.format('%d', now + ttl_ms), worker) - 1 end
redis.call('ZADD', workers, string.format('%d', now + ttl_ms), worker)
redis.call('HSET', worker_info, worker, info)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', workers, '-inf', now - 86400000, 'LIMIT', 0, 100)) do
  redis.call('ZREM', workers, gone)
  redis.call('HDEL', worker_info, gone)
end
local number = redis.call('HGET', worker_numbers, worker)
if not number then
  number = redis.call('HLEN', worker_numbers) + 1
  redis.call('HSET', worker_numbers, worker, number)
  redis.call('HSET', worker_names, number, worker)
end
return tonumber(number)
