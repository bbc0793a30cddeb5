-- audit_fix: puts right what an audit has found twice in a pool, each only if it is still so.
-- cell: pool
-- keys: prefix
-- args: fence lease_ms ...
-- Said by the leader, under its fence. The rest, three a repair: what, attempt id (or member, group), value.
-- returns: {1 for each that was done, 0 for what has changed meanwhile}
-- errors: FENCED
-- cost: O(repairs + stream), at most 100 repairs
-- include: lib/clock.lua
-- include: lib/pool.lua
pool.begin(prefix, clock.now())
local refused = pool.refused('leader', fence)
if refused then return refused end
if not pool.open() then return {} end
local freed, hinted = 0, nil

local function on_stream(id)
  if not hinted then
    hinted = {}
    for _, entry in ipairs(redis.call('XRANGE', pool.stream, '-', '+')) do hinted[entry[2][2]] = true end
  end
  return hinted[id]
end

local fix = {}

-- A queued entry that no worker will hear of.
function fix.hint(id)
  local e = pool.get(id)
  if not e or e.state ~= 'Q' or on_stream(id) then return end
  pool.push(e)
  hinted[id] = true
  return true
end

-- A hint that was delivered, and is pending for nobody.
function fix.redeliver(id, entry)
  if redis.call('XDEL', pool.stream, entry) == 0 then return end
  local e = pool.get(id)
  if e and e.state == 'Q' then pool.push(e) end
  return true
end

-- An entry whose slots are not (all) taken.
function fix.hold(id)
  local e = pool.get(id)
  if not e or e.state == 'W' then return end
  local added = 0
  for slot = 1, e.slots do
    added = added + redis.call('SADD', pool.held_key, slot == 1 and id or id .. '#' .. string.format('%d', slot))
  end
  pool.used = pool.used + added
  return added > 0
end

-- A slot that nobody has.
function fix.free(member)
  local id, slot = string.match(member, '^([^#]+)#?(%d*)$')
  local e = id and pool.get(id)
  if e and e.state ~= 'W' and (tonumber(slot) or 1) <= e.slots then return end
  local gone = redis.call('SREM', pool.held_key, member)
  pool.used, freed = pool.used - gone, freed + gone
  return gone == 1
end

-- A grant without a lease gets one; if its worker lives it renews it, else it is taken back.
function fix.lease(id)
  local e = pool.get(id)
  if not e or (e.state ~= 'R' and e.state ~= 'S') then return end
  return redis.call('ZADD', pool.lease, 'NX', string.format('%d', pool.now + lease_ms), id) == 1
end

function fix.unlease(id)
  local e = pool.get(id)
  if e and (e.state == 'R' or e.state == 'S') then return end
  return redis.call('ZREM', pool.lease, id) == 1
end

-- An entry that waits, and stands in no line (or in one that is not served): it goes in by how long it waits.
function fix.wait(id)
  local e = pool.get(id)
  if not e or e.state ~= 'W' then return end
  redis.call('ZREM', prefix .. 'wait:' .. e.group, id)
  pool.known = {}
  pool.wait(e, tonumber(e.nonce) or pool.now)
  pool.write()
  freed = freed + 1
  return true
end

function fix.unwait(id, group)
  local e = pool.get(id)
  if e and e.state == 'W' and e.group == group then return end
  return redis.call('ZREM', prefix .. 'wait:' .. group, id) == 1
end

function fix.unline(group)
  if redis.call('EXISTS', prefix .. 'wait:' .. group) == 1 then return end
  local gone = redis.call('ZREM', pool.groups, group)
  pool.busy_groups = pool.busy_groups - gone
  return gone == 1
end

function fix.admit(id)
  local e = pool.get(id)
  freed = freed + pool.slots
  return e and e.state == 'W' and e.slots <= pool.slots - pool.used
end

-- An entry that its shard does not want (any more), and that no worker has.
function fix.drop(id)
  local e = pool.get(id)
  if not e or (e.state ~= 'W' and e.state ~= 'Q') then return end
  if e.state == 'Q' then freed = freed + e.slots end
  pool.drop(e)
  return true
end

local done = {}
for i = 3, #ARGV, 3 do done[#done + 1] = fix[ARGV[i]](ARGV[i + 1], ARGV[i + 2]) and 1 or 0 end
pool.admit(math.min(1000, freed + #done))
pool.save()
return done
