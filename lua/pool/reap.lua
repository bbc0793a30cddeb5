-- reap: take back what silent workers held, and put entries on the stream again that were delivered but never granted.
-- cell: pool
-- keys: prefix
-- args: fence lease_ms limit rested
-- Said by the leader every few seconds. What is taken back stays in `lost` until the shard has heard of it (see reaped).
-- If Redis was away (rested = '1', or nobody could call this for long), workers could not renew either: they get one more lease of time.
-- returns: {attempts under a lease, attempt id, worker, …} of `lost`
-- errors: FENCED
-- cost: O(expired + pending), at most `limit` each
-- include: lib/clock.lua
-- include: lib/pool.lua
pool.begin(prefix, clock.now())
local v = redis.call('HMGET', pool.meta, 'slots', 'swept', 'grace', 'fence:leader')
if not v[1] then return { 0 } end
if tonumber(fence) < tonumber(v[4] or '0') then
  return redis.error_reply('FENCED leader shows fence ' .. fence .. ', this pool has seen ' .. v[4])
end
local grace = tonumber(v[3] or '0')
if rested == '1' or (v[2] and pool.now - v[2] > lease_ms * 1.2) then grace = pool.now + lease_ms end
redis.call('HSET', pool.meta, 'swept', pool.now, 'grace', grace, 'fence:leader', fence)

local expired = pool.now >= grace and redis.call('ZRANGEBYSCORE', pool.lease, '-inf', pool.now, 'LIMIT', 0, limit) or {}
if #expired > 0 then
  pool.open()
  local freed = 0
  for _, id in ipairs(expired) do
    local e = pool.get(id)
    if e then
      pool.drop(e)
      freed = freed + e.slots
      if e.state == 'R' then redis.call('HSET', prefix .. 'lost', id, e.worker) end
    else
      redis.call('ZREM', pool.lease, id)
    end
  end
  pool.admit(freed)
  pool.save()
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
local answer = redis.call('HGETALL', prefix .. 'lost')
table.insert(answer, 1, redis.call('ZCARD', pool.lease))
return answer
