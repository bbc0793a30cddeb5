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
-- What every step needs, without being looked up each time. Nothing is there yet when a library is loaded: `begin` looks.
local call, match, find, format, byte

local function look_up()
  call, match, find, format, byte = redis.call, string.match, string.find, string.format, string.byte
end
-- One command for a key and many values, in parts: Lua's unpack ends at 8000.
local function bulk(command, key, list)
  for i = 1, #list, 4000 do redis.call(command, key, unpack(list, i, math.min(i + 3999, #list))) end
end
-- A pool: who waits, who holds slots, and the one door through which work gets onto its stream.
-- entries: attempt id -> <state>,<nonce>,<worker>,<terms>; terms, as its shard offered it: <slots>,<priority>,<group>,<weight>;<payload>
--   W waits in its group, since the time that stands for its nonce · Q on the stream · R granted to a worker
--   S granted, but no longer wanted
-- held: one member a slot that is taken (`id`, `id#2`, …): its cardinality is the occupancy, so none can leak.
-- Fair share between groups is start-time fair queueing; inside a group priority goes first, then the run's age, then the task's:
-- runs that have begun are finished first.
-- What `hold`, `wait` and `drop` change is written by `save`, many in a command: whoever calls them ends with it.
local pool = { GROUP = 'workers', KEEP_DONE = 20000, LOOK = 8 }

local ENTRY, TERMS = '^(%a),([^,]*),([^,]*),(.*)$', '^(%d+),(%-?%d+),([^,]*),([^;]*);(.*)$'

-- What is to be written: nothing yet.
local function nothing()
  return { set = {}, hold = {}, del = {}, free = {}, unlease = {}, done = {}, wait = {} }
end

-- A function outlives its call: every script begins with this.
function pool.begin(prefix, now)
  look_up()
  pool.prefix, pool.now, pool.dirty = prefix, now, false
  pool.meta, pool.entries, pool.held_key = prefix .. 'meta', prefix .. 'entries', prefix .. 'held'
  pool.lease, pool.stream, pool.groups = prefix .. 'lease', prefix .. 'stream', prefix .. 'groups'
  pool.done, pool.done_before = prefix .. 'done', prefix .. 'done_before'
  pool.shares, pool.dropped, pool.known, pool.seen = {}, {}, {}, nil
  pool.writes = nothing()
end

local function decode(id, text)
  if not text then return nil end
  local state, nonce, worker, terms = match(text, ENTRY)
  return pool.entry(id, terms, state, nonce, worker)
end

function pool.entry(id, terms, state, nonce, worker)
  local slots, priority, group, weight, payload = match(terms, TERMS)
  return { id = id, state = state, slots = tonumber(slots), priority = priority, group = group, weight = weight,
    nonce = nonce, worker = worker, payload = payload, terms = terms }
end

local function encode(e)
  return e.state .. ',' .. e.nonce .. ',' .. e.worker .. ',' .. e.terms
end

function pool.get(id)
  if pool.dropped[id] then return nil end
  return decode(id, call('HGET', pool.entries, id))
end

-- Those of these ids that are granted under this nonce, with what `drop` wants to know of them.
function pool.granted(ids, nonce)
  local found = {}
  for i, text in ipairs(call('HMGET', pool.entries, unpack(ids))) do
    local state, holder, slots = match(text or '', '^([RS]),([^,]*),[^,]*,(%d+),')
    if holder == nonce then found[#found + 1] = { id = ids[i], state = state, slots = tonumber(slots) } end
  end
  return found
end

-- Hints become grants, from text to text: of each id G (granted now, or before under this nonce), or N.
function pool.grant(ids, nonce, worker)
  local set, answer = pool.writes.set, {}
  for i, text in ipairs(call('HMGET', pool.entries, unpack(ids))) do
    local state, holder, terms = match(text or '', '^(%a),([^,]*),[^,]*,(.*)$')
    if state == 'Q' then
      set[#set + 1], set[#set + 2] = ids[i], 'R,' .. nonce .. ',' .. worker .. ',' .. terms
      answer[i] = 'G'
    else
      answer[i] = state == 'R' and holder == nonce and 'G' or 'N'
    end
  end
  return answer
end

function pool.put(e)
  call('HSET', pool.entries, e.id, encode(e))
end

-- As `put`, but written by `save`.
function pool.set(e)
  local set = pool.writes.set
  local n = #set
  set[n + 1], set[n + 2] = e.id, encode(e)
end

-- Whether there is such a pool. `caller`: whose fence is looked at next.
function pool.open(caller)
  local v = call('HMGET', pool.meta, 'slots', 'v', 'passed', 'horizon', 'fence:' .. (caller or ''))
  if not v[1] then return false end
  pool.slots, pool.v = tonumber(v[1]), tonumber(v[2]) or 0
  pool.passed, pool.horizon, pool.seen = tonumber(v[3]) or 0, tonumber(v[4]) or 0, caller and (v[5] or '0')
  pool.used = call('SCARD', pool.held_key)
  pool.busy_groups = call('ZCARD', pool.groups)
  return true
end

-- Everything that was noted since the last time.
function pool.write()
  local w = pool.writes
  bulk('HDEL', pool.entries, w.del)
  bulk('SREM', pool.held_key, w.free)
  bulk('ZREM', pool.lease, w.unlease)
  bulk('SADD', pool.done, w.done)
  bulk('HSET', pool.entries, w.set)
  bulk('SADD', pool.held_key, w.hold)
  for group, items in pairs(w.wait) do bulk('ZADD', pool.prefix .. 'wait:' .. group, items) end
  pool.writes = nothing()
end

-- What each group was given, a minute at a time, is kept for a quarter of an hour: `pool show` prints the shares.
function pool.save()
  pool.write()
  if pool.dirty then
    call('HSET', pool.meta, 'v', format('%.6f', pool.v), 'passed', format('%d', pool.passed))
  end
  local minute = pool.prefix .. 'shares:' .. format('%d', math.floor(pool.now / 60000))
  local new = false
  for group, slots in pairs(pool.shares) do new = call('HINCRBY', minute, group, slots) == slots or new end
  if new then call('EXPIRE', minute, 900) end
end

-- The only place that puts work on a stream, so that waking a worker can't be forgotten.
function pool.push(e)
  call('XADD', pool.stream, '*', 'id', e.id, 'payload', e.payload)
end

local function place(id, slot)
  return slot == 1 and id or id .. '#' .. format('%d', slot)
end

function pool.hold(e)
  local hold = pool.writes.hold
  for slot = 1, e.slots do hold[#hold + 1] = place(e.id, slot) end
  pool.used = pool.used + e.slots
  pool.shares[e.group] = (pool.shares[e.group] or 0) + e.slots
  e.state, e.nonce = 'Q', ''
  pool.set(e)
  pool.push(e)
end

-- `since`: when its run was created.
function pool.wait(e, since)
  e.state, e.nonce = 'W', format('%d', pool.now)
  pool.set(e)
  local items = pool.writes.wait[e.group]
  if not items then
    items = {}
    pool.writes.wait[e.group] = items
  end
  -- Smaller goes first; both parts together stay below 2^53.
  items[#items + 1] = (1000 - e.priority) * 4000000000000 + since
  items[#items + 1] = e.id
  if not pool.known[e.group] then
    pool.known[e.group] = true
    if not call('ZSCORE', pool.groups, e.group) then
      local tag = tonumber(call('ZSCORE', pool.prefix .. 'tags', e.group) or 0)
      call('ZADD', pool.groups, format('%.6f', math.max(pool.v, tag)), e.group)
      pool.busy_groups = pool.busy_groups + 1
    end
  end
end

-- Offers that came: of each T (taken now, or known before), W (wider than the pool) or B (behind: it may have come and gone).
function pool.take(offers, cursor_ms)
  local ids, known, answer = {}, {}, {}
  for _, e in ipairs(offers) do
    if not e.fresh then ids[#ids + 1] = e.id end
  end
  if #ids > 0 then
    local here, gone = call('HMGET', pool.entries, unpack(ids)), pool.gone(ids)
    for i, id in ipairs(ids) do known[id] = here[i] or gone[i] end
  end
  for i, e in ipairs(offers) do
    if known[e.id] then
      answer[i] = 'T'
    elseif e.slots > pool.slots and pool.slots > 0 then
      answer[i] = 'W'
    elseif cursor_ms <= pool.horizon then
      answer[i] = 'B'
    else
      answer[i], known[e.id] = 'T', true
      if pool.busy_groups == 0 and pool.used + e.slots <= pool.slots then pool.hold(e) else pool.wait(e, e.since) end
    end
  end
  if pool.busy_groups > 0 then pool.admit(#answer) end
  pool.save()
  return answer
end

-- ---------------------------------------------------------------- who goes next

-- The group has this virtual time now; one in which nobody waits is remembered only as long as it is ahead: an idle group
-- saves no credit, and leaving is no way to lose a debt.
local function after(group, tag)
  if call('EXISTS', pool.prefix .. 'wait:' .. group) == 1 then
    return call('ZADD', pool.groups, format('%.6f', tag), group)
  end
  pool.busy_groups = pool.busy_groups - call('ZREM', pool.groups, group)
  pool.known[group] = nil
  call('ZREMRANGEBYSCORE', pool.prefix .. 'tags', '-inf', format('%.6f', pool.v))
  call('ZADD', pool.prefix .. 'tags', format('%.6f', tag), group)
end

-- The first of a group that has not been given out, and its entry; read `count` at a time.
local function head(g, count)
  if g.at > #g.ids then
    g.ids, g.at = call('ZRANGE', pool.prefix .. 'wait:' .. g.name, #g.gone, #g.gone + count - 1), 1
    if #g.ids == 0 then return nil end
    g.texts = call('HMGET', pool.entries, unpack(g.ids))
  end
  local id = g.ids[g.at]
  return id, decode(id, g.texts[g.at])
end

local function before(a, b)
  return a.tag < b.tag or (a.tag == b.tag and a.name < b.name)
end

-- Put back the first of a sorted list, whose time has moved on.
local function resort(groups)
  local g = table.remove(groups, 1)
  local low, high = 1, #groups + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if before(groups[middle], g) then low = middle + 1 else high = middle end
  end
  table.insert(groups, low, g)
end

-- Heads of groups in turn, as long as each fits. Returns how many were given slots, and whether more may be.
local function admit_heads(limit)
  local look, groups = math.max(pool.LOOK, math.min(limit, 100)), {}
  local list = call('ZRANGE', pool.groups, 0, look, 'WITHSCORES')
  for i = 1, #list, 2 do groups[#groups + 1] = { name = list[i], tag = tonumber(list[i + 1]), gone = {}, ids = {}, at = 1 } end
  local beyond = #groups > look and table.remove(groups) or nil
  local given, more, touched = 0, true, {}
  while given < limit and pool.used < pool.slots and groups[1] do
    local first = groups[1]
    if beyond and before(beyond, first) then break end
    local id, e = head(first, math.min(1000, math.ceil((limit - given) / #groups)))
    touched[first] = true
    if not id then
      table.remove(groups, 1)
    elseif e and e.slots > pool.slots - pool.used then
      more = false
      break
    else
      first.at, first.gone[#first.gone + 1] = first.at + 1, id
      pool.v, pool.dirty = math.max(pool.v, first.tag), true
      if e then
        first.tag, pool.passed = first.tag + e.slots / tonumber(e.weight), 0
        pool.hold(e)
      end
      given = given + 1
      if groups[2] then resort(groups) end
    end
  end
  for g in pairs(touched) do
    bulk('ZREM', pool.prefix .. 'wait:' .. g.name, g.gone)
    after(g.name, g.tag)
  end
  return given, more
end

-- The first in line is too wide for what is free: the next that fits may go before it, until as many slots as the pool has
-- were given past it: then it is waited for. Returns its group, the group's virtual time, its id and its entry.
local function next_that_fits()
  local free, first = pool.slots - pool.used, true
  local groups = call('ZRANGE', pool.groups, 0, pool.LOOK - 1, 'WITHSCORES')
  for g = 1, #groups, 2 do
    for _, id in ipairs(call('ZRANGE', pool.prefix .. 'wait:' .. groups[g], 0, first and 0 or pool.LOOK - 1)) do
      local e = pool.get(id)
      if not e or e.slots <= free then
        if not first then pool.passed = pool.passed + (e and e.slots or 0) end
        if first and e then pool.passed = 0 end
        return groups[g], tonumber(groups[g + 1]), id, e
      end
      -- One that is wider than the whole pool waits for a person, and holds nobody up.
      if first and e.slots <= pool.slots and pool.passed >= pool.slots then return nil end
      first = false
    end
  end
end

local function admit_past()
  local group, tag, id, e = next_that_fits()
  if not group then return false end
  call('ZREM', pool.prefix .. 'wait:' .. group, id)
  pool.v, pool.dirty = math.max(pool.v, tag), true
  if e then
    tag = tag + e.slots / tonumber(e.weight)
    pool.hold(e)
  end
  after(group, tag)
  return true
end

-- Give free slots to those who wait: the group with the smallest virtual time first. Returns 1 if `limit` stopped it.
function pool.admit(limit)
  pool.write()
  while limit > 0 do
    if pool.busy_groups == 0 or pool.used >= pool.slots then return 0 end
    local given, more = admit_heads(limit)
    limit = limit - given
    if not more then
      pool.write()
      if not admit_past() then return 0 end
      limit = limit - 1
    end
  end
  return 1
end

-- The entry leaves the pool, and is remembered for a while: an offer of it that comes late is a no-op.
function pool.drop(e)
  if pool.dropped[e.id] then return end
  pool.dropped[e.id] = true
  local w = pool.writes
  w.del[#w.del + 1] = e.id
  if e.state == 'W' then
    local key = pool.prefix .. 'wait:' .. e.group
    call('ZREM', key, e.id)
    if call('EXISTS', key) == 0 then
      pool.busy_groups = pool.busy_groups - call('ZREM', pool.groups, e.group)
      pool.known[e.group] = nil
    end
  else
    for slot = 1, e.slots do w.free[#w.free + 1] = place(e.id, slot) end
    pool.used = pool.used - e.slots
    w.unlease[#w.unlease + 1] = e.id
  end
  w.done[#w.done + 1] = e.id
end

-- Those of these ids that left lately: true by their places in the list.
function pool.gone(ids)
  if #ids == 0 then return ids end
  local gone = call('SMISMEMBER', pool.done, unpack(ids))
  local before = call('SMISMEMBER', pool.done_before, unpack(ids))
  for i = 1, #ids do gone[i] = gone[i] + before[i] > 0 end
  return gone
end

-- Who left lately is kept in two sets, the older of which goes as a whole; the horizon is when its last one had come.
function pool.trim_done()
  if call('SCARD', pool.done) < pool.KEEP_DONE then return end
  local turned = call('HGET', pool.meta, 'turned')
  if turned then call('HSET', pool.meta, 'horizon', turned) end
  call('HSET', pool.meta, 'turned', pool.now)
  call('UNLINK', pool.done_before)
  call('RENAME', pool.done, pool.done_before)
end

-- The refusal for callers with an outdated token: a pool remembers the highest fence it has seen from each.
function pool.refused(name, fence)
  local seen = tonumber(pool.seen or call('HGET', pool.meta, 'fence:' .. name) or '0')
  if tonumber(fence) < seen then
    return redis.error_reply('FENCED ' .. name .. ' shows fence ' .. fence .. ', this pool has seen ' .. format('%d', seen))
  end
  if tonumber(fence) > seen then call('HSET', pool.meta, 'fence:' .. name, fence) end
end
local prefix = KEYS[1]
-- revoke: these attempts are not wanted any more. What waits or is queued leaves at once; what runs keeps its slot until it has stopped.
-- cell: pool
-- keys: prefix
-- args: ...
-- The rest: attempt ids.
-- flags: flags=allow-oom
-- returns: number of attempts that a worker has to stop
-- errors: none
-- cost: O(ids log waiting)
pool.begin(prefix, clock.now())
if not pool.open() then return 0 end
local running, freed = 0, 0
for i = 1, #ARGV do
  local e = pool.get(ARGV[i])
  if not e then
    redis.call('SADD', pool.done, ARGV[i]) -- an offer that is still under way finds it here
  elseif e.state == 'R' or e.state == 'S' then
    e.state = 'S'
    pool.put(e)
    running = running + 1
  else
    if e.state == 'Q' then freed = freed + e.slots end
    pool.drop(e)
  end
end
pool.trim_done()
pool.admit(freed + #ARGV)
pool.save()
return running
