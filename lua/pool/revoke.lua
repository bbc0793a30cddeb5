-- revoke: these attempts are not wanted any more. What waits or is queued leaves at once; what runs keeps its slot until it has stopped.
-- cell: pool
-- keys: prefix
-- args: ...
-- The rest: attempt ids.
-- flags: flags=allow-oom
-- returns: number of attempts that a worker has to stop
-- errors: none
-- cost: O(ids log waiting)
-- include: lib/clock.lua
-- include: lib/pool.lua
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
