-- beat: a scheduler's one heartbeat. It renews the lease under which all its shards stand, and settles who leads.
-- cell: control
-- keys: schedulers leader leader_fence
-- args: scheduler lease_ms look
-- flags: flags=allow-oom
-- look: '1' to see who else lives and who leads; '' only renews, which is cheaper.
-- returns: {now} | {now, leader token, live scheduler, …}
-- errors: none
-- cost: O(schedulers)
-- include: lib/clock.lua
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
