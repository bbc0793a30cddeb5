-- release: the attempts have been reported; their slots go to those who wait, in this same step.
-- cell: pool
-- keys: prefix
-- args: nonce ...
-- The rest: attempt ids.
-- flags: flags=allow-oom
-- returns: number released
-- errors: none
-- cost: O(ids log waiting)
-- include: lib/clock.lua
-- include: lib/pool.lua
pool.begin(prefix, clock.now())
if not pool.open() then return 0 end
local released = 0
for _, e in ipairs(pool.granted({ unpack(ARGV, 2) }, nonce)) do
  if not pool.dropped[e.id] then
    pool.drop(e)
    released = released + e.slots
  end
end
pool.admit(released)
pool.save()
pool.trim_done()
return released
