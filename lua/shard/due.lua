-- due: DAGs whose next slot is due, with what decides about it.
-- cell: shard
-- keys: owner meta prefix
-- args: token limit
-- returns: {now, next look after these (ms) or 0, dag, slot, schedule (JSON), runs queued, runs active, …}
-- errors: FENCED
-- cost: O(limit)
-- include: lib/clock.lua
-- include: lib/lease.lua
local refused = lease.refused(owner, meta, token)
if refused then return refused end
local now, answer = clock.now(), {}
for _, dag in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'slots', '-inf', now, 'LIMIT', 0, limit)) do
  local v = redis.call('HMGET', prefix .. 'dag:' .. dag, 'slot', 'schedule', 'paused')
  if not v[1] or not v[2] or v[3] == '1' then
    redis.call('ZREM', prefix .. 'slots', dag) -- a paused DAG keeps its slot and is put back when it is resumed
  else
    local i = #answer
    answer[i + 1], answer[i + 2], answer[i + 3] = dag, v[1], v[2]
    answer[i + 4], answer[i + 5] = redis.call('ZCARD', prefix .. 'queue:' .. dag), redis.call('SCARD', prefix .. 'active:' .. dag)
  end
end
local first = redis.call('ZRANGE', prefix .. 'slots', 0, 0, 'WITHSCORES')
table.insert(answer, 1, first[2] or '0')
table.insert(answer, 1, string.format('%d', now))
return answer
