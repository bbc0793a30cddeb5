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
local schedulers = KEYS[1]
local leader = KEYS[2]
local leader_fence = KEYS[3]
local scheduler = ARGV[1]
local lease_ms = ARGV[2]
local look = ARGV[3]
-- beat: a scheduler's one heartbeat. It renews the lease under which all its shards stand, and settles who leads.
-- cell: control
-- keys: schedulers leader leader_fence
-- args: scheduler lease_ms look
-- flags: flags=allow-oom
-- look: '1' to see who else lives and who leads; '' only renews, which is cheaper.
-- returns: {now} | {now, leader token, live scheduler, …}
-- errors: none
-- cost: O(schedulers)
local now = clock.now()
redis.call('ZADD', schedulers, string.format('%d', now + lease_ms), scheduler)
if look ~= '1' then return { string.format('%d', now) } end
local all = redis.call('ZRANGE', schedulers, 0, -1, 'WITHSCORES')
local live, answer = {}, { string.format('%d', now), '' }
for i = 1, #all, 2 do
  if tonumber(all[i + 1]) > now then
    live[all[i]] = true
    answer[#answer + 1] = all[i]
  elseif tonumber(all[i + 1]) < now - 3600000 then
    redis.call('ZREM', schedulers, all[i])
  end
end
local current = redis.call('GET', leader)
if not current or not live[string.match(current, '^(.*):%d+$')] then
  current = scheduler .. ':' .. redis.call('INCR', leader_fence)
  redis.call('SET', leader, current)
end
answer[2] = current
return answer
