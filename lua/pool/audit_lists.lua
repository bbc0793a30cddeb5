-- audit_lists: one look at what a pool keeps beside its entries: slots, leases, lines and hints that nobody stands behind.
-- cell: pool
-- keys: prefix
-- args: cursor count
-- cursor: of SSCAN over the slots that are taken; the rest is looked at with the first page (`0`) only.
-- flags: flags=no-writes
-- returns: {next cursor, {members of held without an entry}, {leases without a grant}, {group, member without an entry, …},
--   {groups in line in which nobody waits}, {hints that nobody will read: stream entry, attempt id, …}, first in line that has room or ''}
-- errors: none
-- cost: O(count + leases and hints, at most 1000 each + 20 groups)
-- include: lib/clock.lua
-- include: lib/pool.lua
pool.begin(prefix, clock.now())
local held, leases, waits, groups, hints, first = {}, {}, {}, {}, {}, ''

local page = redis.call('SSCAN', pool.held_key, cursor, 'COUNT', count)
for _, member in ipairs(page[2]) do
  local id, slot = string.match(member, '^([^#]+)#?(%d*)$')
  local e = id and pool.get(id)
  if not e or e.state == 'W' or (tonumber(slot) or 1) > e.slots then held[#held + 1] = member end
end

local function hints_left_behind()
  local infos = redis.pcall('XINFO', 'GROUPS', pool.stream)
  local at = nil
  for _, flat in ipairs(infos.err and {} or infos) do
    local info = {}
    for i = 1, #flat, 2 do info[flat[i]] = flat[i + 1] end
    if info.name == pool.GROUP then at = info['last-delivered-id'] end
  end
  if not at then return end
  local pending = {}
  for _, p in ipairs(redis.call('XPENDING', pool.stream, pool.GROUP, '-', '+', 2000)) do pending[p[1]] = true end
  for _, entry in ipairs(redis.call('XRANGE', pool.stream, '-', at, 'COUNT', 1000)) do
    if not pending[entry[1]] then
      hints[#hints + 1] = entry[1]
      hints[#hints + 1] = entry[2][2]
    end
  end
end

if cursor == '0' and pool.open() then
  for _, id in ipairs(redis.call('ZRANGE', pool.lease, 0, 999)) do
    local e = pool.get(id)
    if not e or (e.state ~= 'R' and e.state ~= 'S') then leases[#leases + 1] = id end
  end
  for i, group in ipairs(redis.call('ZRANGE', pool.groups, 0, 19)) do
    local line = redis.call('ZRANGE', prefix .. 'wait:' .. group, 0, 49)
    if #line == 0 then groups[#groups + 1] = group end
    for at, id in ipairs(line) do
      local e = pool.get(id)
      if not e or e.state ~= 'W' or e.group ~= group then
        waits[#waits + 1] = group
        waits[#waits + 1] = id
      elseif i == 1 and at == 1 and e.slots <= pool.slots - pool.used then
        first = id
      end
    end
  end
  hints_left_behind()
end
return { page[1], held, leases, waits, groups, hints, first }
