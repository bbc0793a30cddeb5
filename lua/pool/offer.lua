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
local offers = {}
for i = 5, #ARGV, 3 do
  local e = pool.entry(ARGV[i], ARGV[i + 1], '', '', '')
  e.since = ARGV[i + 2]
  offers[#offers + 1] = e
end
return { 'OK', table.concat(pool.take(offers, tonumber(cursor_ms))) }
