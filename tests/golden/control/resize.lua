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
local settings = KEYS[1]
local schedulers = KEYS[2]
local workers = KEYS[3]
local resizer = ARGV[1]
local target = ARGV[2]
local lease_ms = ARGV[3]
-- resize: the number of shards is going to be another one, while nobody lives. Said again, it renews the caller's right to do it.
-- cell: control
-- keys: settings schedulers workers
-- args: resizer target lease_ms
-- returns: {OK, shards now} | {ALIVE, name, …} | {BUSY, who does it, ms left} | {OTHER, what it is being changed to}
-- errors: none
-- cost: O(schedulers + workers)
local now = clock.now()
local v = redis.call('HMGET', settings, 'shards', 'resizing', 'resizer', 'resizer_until')
if v[2] and v[2] ~= target then return { 'OTHER', v[2] } end
if v[3] and v[3] ~= resizer and tonumber(v[4]) > now then return { 'BUSY', v[3], v[4] - now } end
if v[3] ~= resizer then
  local alive = { 'ALIVE' }
  for kind, list in pairs({ scheduler = schedulers, worker = workers }) do
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', list, '(' .. now, '+inf')) do alive[#alive + 1] = kind .. ' ' .. name end
  end
  if #alive > 1 then return alive end
  -- Who comes back from a long sleep finds its name struck off, and has to ask for the number of shards.
  redis.call('ZREMRANGEBYSCORE', schedulers, '-inf', now)
end
redis.call('HSET', settings, 'resizing', target, 'resizer', resizer, 'resizer_until', string.format('%d', now + lease_ms))
return { 'OK', v[1] or target }
