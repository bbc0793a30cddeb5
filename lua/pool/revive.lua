-- revive: the stream or its group vanished. Make the group again, and put on the stream what the pool's records say is missing there.
-- cell: pool
-- keys: prefix
-- args:
-- returns: number of entries put on the stream
-- errors: none
-- cost: O(entries of the pool): rare, after a fault or at first use
-- include: lib/clock.lua
-- include: lib/pool.lua
pool.begin(prefix, clock.now())
-- From 0: what still stands there is only a hint, so nothing can run twice by being read again.
local made = redis.pcall('XGROUP', 'CREATE', pool.stream, pool.GROUP, '0', 'MKSTREAM')
if made.err and string.find(made.err, 'BUSYGROUP', 1, true) then return 0 end
local there, pushed = {}, 0
for _, entry in ipairs(redis.call('XRANGE', pool.stream, '-', '+')) do there[entry[2][2]] = true end
local all = redis.call('HGETALL', pool.entries)
for i = 1, #all, 2 do
  if string.sub(all[i + 1], 1, 1) == 'Q' and not there[all[i]] then
    pool.push(pool.get(all[i]))
    pushed = pushed + 1
  end
end
return pushed
