-- reap: take back what silent workers held, and put entries on the stream again that were delivered but never granted.
-- cell: pool
-- keys: prefix
-- args: fence lease_ms limit
-- Said by the leader every few seconds. What is taken back stays in `lost` until the shard has heard of it (see reaped).
-- If nobody could call this for long (Redis was away), workers could not renew either: they get one more lease of time.
-- returns: {attempt id, worker, …} of `lost`
-- errors: FENCED
-- cost: O(expired + pending), at most `limit` each
-- include: lib/clock.lua
-- include: lib/pool.lua
pool.begin(prefix, clock.now())
if not pool.open() then return {} end
local refused = pool.refused('leader', fence)
if refused then return refused end
local lost = prefix .. 'lost'
local v = redis.call('HMGET', pool.meta, 'swept', 'grace')
local grace = tonumber(v[2] or '0')
if v[1] and pool.now - v[1] > lease_ms * 0.8 then
  grace = pool.now + lease_ms
  redis.call('HSET', pool.meta, 'grace', grace)
end
redis.call('HSET', pool.meta, 'swept', pool.now)

local freed = 0
if pool.now >= grace then
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', pool.lease, '-inf', pool.now, 'LIMIT', 0, limit)) do
    local e = pool.get(id)
    if e then
      pool.drop(e)
      freed = freed + e.slots
      if e.state == 'R' then redis.call('HSET', lost, id, e.worker) end
    else
      redis.call('ZREM', pool.lease, id)
    end
  end
end

local pending = redis.pcall('XPENDING', pool.stream, pool.GROUP, 'IDLE', lease_ms, '-', '+', limit)
if not pending.err then
  for _, p in ipairs(pending) do
    local found = redis.call('XRANGE', pool.stream, p[1], p[1])[1]
    redis.call('XACK', pool.stream, pool.GROUP, p[1])
    redis.call('XDEL', pool.stream, p[1])
    local e = found and pool.get(found[2][2])
    if e and e.state == 'Q' then pool.push(e) end
  end
end
if freed > 0 then pool.admit(freed) end
pool.save()
local answer = redis.call('HGETALL', lost)
return answer
