-- configure: make a pool or change its number of slots. Fewer slots stop nothing that runs; more are given out at once.
-- cell: pool
-- keys: prefix
-- args: slots only_new
-- returns: {1 if it is new, slots before or ''}
-- errors: none
-- cost: O(admitted), at most 1000; later releases and offers admit the rest
-- include: lib/clock.lua
-- include: lib/pool.lua
pool.begin(prefix, clock.now())
local before = redis.call('HGET', pool.meta, 'slots')
if before and only_new == '1' then return { 0, before } end
redis.call('HSET', pool.meta, 'slots', slots)
pool.open()
pool.admit(1000)
pool.save()
return { before and 0 or 1, before or '' }
