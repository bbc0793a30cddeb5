-- offer: a shard's ready tasks come to the pool. With none, only the fence is shown, so that an earlier owner can't offer any more.
-- cell: pool
-- keys: prefix
-- args: shard fence cursor_ms slots_if_new ...
-- cursor_ms: how far the shard's inbox was applied when this was decided. slots_if_new: '' if the pool must exist.
-- The rest, three an entry: attempt id, terms (lib/pool.lua), when its run was created (ms).
-- returns: {NOPOOL} | {OK, one letter an entry: T taken (now or before), B behind (apply the inbox, offer again), W wider than the pool}
-- errors: FENCED
-- cost: O(entries log waiting)
-- include: lib/clock.lua
-- include: lib/pool.lua
pool.begin(prefix, clock.now())
local exists = pool.open()
if not exists and slots_if_new == '' then return { 'NOPOOL' } end
local refused = pool.refused(shard, fence)
if refused then return refused end
if not exists then
  call('HSET', pool.meta, 'slots', slots_if_new)
  pool.open()
end
local ids, seen, answer = {}, {}, {}
for i = 5, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local here, gone = #ids > 0 and call('HMGET', pool.entries, unpack(ids)), pool.gone(ids)
for k, id in ipairs(ids) do
  local letter = 'T'
  if not here[k] and not gone[k] and not seen[id] then
    local i = 5 + (k - 1) * 3
    local e = pool.entry(id, ARGV[i + 1], '', '', '')
    if e.slots > pool.slots and pool.slots > 0 then
      letter = 'W'
    elseif tonumber(cursor_ms) <= pool.horizon then
      letter = 'B'
    else
      seen[id] = true
      if pool.busy_groups == 0 and pool.used + e.slots <= pool.slots then pool.hold(e) else pool.wait(e, ARGV[i + 2]) end
    end
  end
  answer[k] = letter
end
if pool.busy_groups > 0 then pool.admit(#answer) end
pool.save()
return { 'OK', table.concat(answer) }
