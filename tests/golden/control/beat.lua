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
local settings = KEYS[4]
local scheduler = ARGV[1]
local lease_ms = ARGV[2]
local shards = ARGV[3]
local look = ARGV[4]
local known = ARGV[5]
-- beat: a scheduler's one heartbeat. It renews the lease under which all its shards stand, and settles who leads.
-- cell: control
-- keys: schedulers leader leader_fence settings
-- args: scheduler lease_ms shards look known
-- flags: flags=allow-oom
-- shards: how many the caller knows of; who joins, or comes back to find its name struck off, must know the right number.
-- look: '1' to see who else lives and who leads; '' only renews, which is cheaper.
-- known: the leader that the caller believes in, which is true as long as that one lives; '' asks for what is written.
-- returns: {now} | {now, leader token, when the first of the others' leases ends or 0, live scheduler, …}
-- errors: RESHARDED
-- cost: O(schedulers)
local now = clock.now()
local till = string.format('%d', now + lease_ms)
if redis.call('ZADD', schedulers, 'XX', 'CH', till, scheduler) == 0 then
  local v = redis.call('HMGET', settings, 'shards', 'resizing')
  if v[2] or (v[1] and v[1] ~= shards) then return redis.error_reply('RESHARDED ' .. (v[1] or '') .. ' ' .. (v[2] or '')) end
  redis.call('ZADD', schedulers, till, scheduler)
end
if look ~= '1' then return { string.format('%d', now) } end
local all = redis.call('ZRANGE', schedulers, 0, -1, 'WITHSCORES')
local live, first, answer = {}, 0, { string.format('%d', now), '', '' }
for i = 1, #all, 2 do
  local ends = tonumber(all[i + 1])
  if ends > now then
    live[all[i]] = true
    answer[#answer + 1] = all[i]
    if all[i] ~= scheduler and (first == 0 or ends < first) then first = ends end
  elseif ends < now - 3600000 then
    redis.call('ZREM', schedulers, all[i])
  end
end
local function lives(token) return token and live[string.match(token, '^(.*):%d+$')] end
local current = known
if not lives(current) then current = redis.call('GET', leader) end
if not lives(current) then
  current = scheduler .. ':' .. redis.call('INCR', leader_fence)
  redis.call('SET', leader, current)
end
answer[2], answer[3] = current, string.format('%d', first)
return answer
