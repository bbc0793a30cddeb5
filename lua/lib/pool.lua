-- A pool: who waits, who holds slots, and the one door through which work gets onto its stream.
-- entries: attempt id -> <state>,<slots>,<priority>,<group>,<weight>,<nonce>,<worker>;<payload>
--   W waits in its group · Q on the stream · R granted to a worker · S granted, but no longer wanted
-- held: one member a slot that is taken (`id`, `id#2`, …): its cardinality is the occupancy, so none can leak.
-- Fair share between groups is start-time fair queueing; inside a group priority goes first, then age.
local pool = { GROUP = 'workers', KEEP_DONE = 20000 }

local PATTERN = '^(%a),(%d+),(%-?%d+),([^,]*),([^,]*),([^,]*),([^;]*);(.*)$'

function pool.begin(prefix, now)
  pool.prefix, pool.now = prefix, now
  pool.meta, pool.entries, pool.held_key = prefix .. 'meta', prefix .. 'entries', prefix .. 'held'
  pool.lease, pool.stream, pool.groups, pool.done = prefix .. 'lease', prefix .. 'stream', prefix .. 'groups', prefix .. 'done'
end

function pool.get(id)
  local text = redis.call('HGET', pool.entries, id)
  if not text then return nil end
  local state, slots, priority, group, weight, nonce, worker, payload = string.match(text, PATTERN)
  return { id = id, state = state, slots = tonumber(slots), priority = tonumber(priority), group = group, weight = weight,
    nonce = nonce, worker = worker, payload = payload }
end

function pool.put(e)
  redis.call('HSET', pool.entries, e.id, e.state .. ',' .. string.format('%d', e.slots) .. ',' .. string.format('%d', e.priority) .. ','
    .. e.group .. ',' .. e.weight .. ',' .. e.nonce .. ',' .. e.worker .. ';' .. e.payload)
end

function pool.open()
  local v = redis.call('HMGET', pool.meta, 'slots', 'v', 'seq')
  if not v[1] then return false end
  pool.slots, pool.v, pool.seq = tonumber(v[1]), tonumber(v[2]) or 0, tonumber(v[3]) or 0
  pool.used = redis.call('SCARD', pool.held_key)
  pool.busy_groups = redis.call('ZCARD', pool.groups)
  return true
end

function pool.save()
  if pool.dirty then redis.call('HSET', pool.meta, 'v', string.format('%.6f', pool.v), 'seq', string.format('%d', pool.seq)) end
end

-- The only place that puts work on a stream, so that waking a worker can't be forgotten.
function pool.push(e)
  redis.call('XADD', pool.stream, '*', 'id', e.id, 'payload', e.payload)
end

local function place(id, slot)
  return slot == 1 and id or id .. '#' .. string.format('%d', slot)
end

function pool.hold(e)
  for slot = 1, e.slots do redis.call('SADD', pool.held_key, place(e.id, slot)) end
  pool.used = pool.used + e.slots
  e.state = 'Q'
  pool.put(e)
  pool.push(e)
end

function pool.wait(e)
  pool.seq, pool.dirty = pool.seq + 1, true
  local key = pool.prefix .. 'wait:' .. e.group
  e.state = 'W'
  pool.put(e)
  -- Smaller goes first; both parts together stay below 2^53.
  redis.call('ZADD', key, (1000 - e.priority) * 4000000000000 + pool.seq, e.id)
  if not redis.call('ZSCORE', pool.groups, e.group) then
    local tag = tonumber(redis.call('ZSCORE', pool.prefix .. 'tags', e.group) or 0)
    redis.call('ZADD', pool.groups, string.format('%.6f', math.max(pool.v, tag)), e.group)
    pool.busy_groups = pool.busy_groups + 1
  end
end

-- Give free slots to those who wait: the group with the smallest virtual time first. Returns 1 if `limit` stopped it.
function pool.admit(limit)
  for _ = 1, limit do
    if pool.busy_groups == 0 or pool.used >= pool.slots then return 0 end
    local first = redis.call('ZRANGE', pool.groups, 0, 0, 'WITHSCORES')
    local group, tag = first[1], tonumber(first[2])
    local key = pool.prefix .. 'wait:' .. group
    local id = redis.call('ZRANGE', key, 0, 0)[1]
    local e = id and pool.get(id)
    if e and pool.used + e.slots > pool.slots then return 0 end -- a wide one is not overtaken
    if id then redis.call('ZREM', key, id) end
    pool.v, pool.dirty = math.max(pool.v, tag), true
    if e then
      tag = tag + e.slots / tonumber(e.weight)
      pool.hold(e)
    end
    if redis.call('EXISTS', key) == 0 then
      redis.call('ZREM', pool.groups, group)
      pool.busy_groups = pool.busy_groups - 1
      -- Remembered only as long as it is ahead: an idle group saves no credit, and leaving is no way to lose a debt.
      redis.call('ZREMRANGEBYSCORE', pool.prefix .. 'tags', '-inf', string.format('%.6f', pool.v))
      redis.call('ZADD', pool.prefix .. 'tags', string.format('%.6f', tag), group)
    else
      redis.call('ZADD', pool.groups, string.format('%.6f', tag), group)
    end
  end
  return 1
end

-- The entry leaves the pool, and is remembered for a while: an offer of it that comes late is a no-op.
function pool.drop(e)
  redis.call('HDEL', pool.entries, e.id)
  if e.state == 'W' then
    local key = pool.prefix .. 'wait:' .. e.group
    redis.call('ZREM', key, e.id)
    if redis.call('EXISTS', key) == 0 then pool.busy_groups = pool.busy_groups - redis.call('ZREM', pool.groups, e.group) end
  else
    for slot = 1, e.slots do pool.used = pool.used - redis.call('SREM', pool.held_key, place(e.id, slot)) end
    redis.call('ZREM', pool.lease, e.id)
  end
  redis.call('ZADD', pool.done, pool.now, e.id)
end

function pool.trim_done()
  if redis.call('ZCARD', pool.done) <= 2 * pool.KEEP_DONE then return end
  local last = redis.call('ZRANGE', pool.done, pool.KEEP_DONE - 1, pool.KEEP_DONE - 1, 'WITHSCORES')
  redis.call('HSET', pool.meta, 'horizon', last[2])
  redis.call('ZREMRANGEBYRANK', pool.done, 0, pool.KEEP_DONE - 1)
end

-- The refusal for callers with an outdated token: a pool remembers the highest fence it has seen from each.
function pool.refused(name, fence)
  local seen = tonumber(redis.call('HGET', pool.meta, 'fence:' .. name) or '0')
  if tonumber(fence) < seen then
    return redis.error_reply('FENCED ' .. name .. ' shows fence ' .. fence .. ', this pool has seen ' .. string.format('%d', seen))
  end
  if tonumber(fence) > seen then redis.call('HSET', pool.meta, 'fence:' .. name, fence) end
end
