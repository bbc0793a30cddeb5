-- audit: one look at a page of a pool's entries, or at those of certain attempts, with every place where each is kept.
-- cell: pool
-- keys: prefix
-- args: cursor count hints ...
-- cursor: of HSCAN, '' for no page. hints: '1' to look on the stream for those that are queued (O(its length)). The rest: attempt ids.
-- flags: flags=no-writes
-- returns: {slots or '', next cursor, looks}; a look: {attempt id, state or '', slots, group, slots held, lease or '', place in line or '',
--   1 if its group is in line, 1 if its shard is being told that it is lost, 1 if it left lately, hint: 1, 0 or '' (not looked for)}
-- errors: none
-- cost: O(page + ids), with hints O(stream), at most 10,000
-- include: lib/clock.lua
-- include: lib/pool.lua
pool.begin(prefix, clock.now())
local there = hints == '1' and {} or nil
if there then
  local entries = redis.call('XRANGE', pool.stream, '-', '+', 'COUNT', 10000)
  for _, entry in ipairs(entries) do there[entry[2][2]] = true end
  if #entries == 10000 then there = nil end
end

local function held(e)
  local count = 0
  for slot = 1, e.slots do
    count = count + redis.call('SISMEMBER', pool.held_key, slot == 1 and e.id or e.id .. '#' .. string.format('%d', slot))
  end
  return count
end

local function look(id)
  local e = pool.get(id)
  local lost, gone = redis.call('HEXISTS', prefix .. 'lost', id), pool.gone({ id })[1] and 1 or 0
  if not e then return { id, '', 0, '', 0, '', '', 0, lost, gone, '' } end
  return { id, e.state, e.slots, e.group, held(e), redis.call('ZSCORE', pool.lease, id) or '',
    redis.call('ZSCORE', prefix .. 'wait:' .. e.group, id) or '', redis.call('ZSCORE', pool.groups, e.group) and 1 or 0, lost, gone,
    there and e.state == 'Q' and (there[id] and 1 or 0) or '' }
end

local looks, following = {}, ''
if cursor ~= '' then
  local page = redis.call('HSCAN', pool.entries, cursor, 'COUNT', count)
  following = page[1]
  for i = 1, #page[2], 2 do looks[#looks + 1] = look(page[2][i]) end
end
for i = 4, #ARGV do looks[#looks + 1] = look(ARGV[i]) end
return { redis.call('HGET', pool.meta, 'slots') or '', following, looks }
