-- backfill_due: backfills that may have something to do now, with how much room they have.
-- cell: shard
-- keys: owner meta prefix
-- args: token limit
-- returns: {dag, id, room, fields of its hash as a list, …}
-- errors: FENCED
-- cost: O(limit and the active runs of the backfills)
-- include: lib/clock.lua
-- include: lib/lease.lua
local refused = lease.refused(owner, meta, token)
if refused then return refused end
local answer = {}

-- Runs that are at it. One that was taken by an owner who died before it could be cleared takes no place: it has to be dealt with still.
local function active(dag, id)
  local count = 0
  for _, run_id in ipairs(redis.call('SMEMBERS', prefix .. 'backfill_runs:' .. dag .. ':' .. id)) do
    local state = redis.call('HGET', prefix .. 'run:' .. dag .. ':' .. run_id, 'state')
    if state == 'running' or state == 'queued' then count = count + 1 end
  end
  return count
end

for _, member in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'backfill_look', '-inf', clock.now(), 'LIMIT', 0, limit)) do
  local dag, id = string.match(member, '^([^/]+)/(.+)$')
  local fields = redis.call('HGETALL', prefix .. 'backfill:' .. dag .. ':' .. id)
  if #fields == 0 then
    redis.call('ZREM', prefix .. 'backfill_look', member)
  else
    local max = tonumber(redis.call('HGET', prefix .. 'backfill:' .. dag .. ':' .. id, 'max_active')) or 1
    local d = redis.call('HMGET', prefix .. 'dag:' .. dag, 'max_active_runs', 'paused')
    local room = max - active(dag, id)
    -- What is scheduled goes first: a backfill takes no place that a queued run waits for.
    if redis.call('ZCARD', prefix .. 'queue:' .. dag) > 0 or d[2] == '1' then room = 0 end
    room = math.min(room, (tonumber(d[1]) or 0) - redis.call('SCARD', prefix .. 'active:' .. dag))
    local i = #answer
    answer[i + 1], answer[i + 2], answer[i + 3], answer[i + 4] = dag, id, math.max(0, room), fields
  end
end
return answer
