-- heartbeat: renew the leases of everything a worker runs; the answer names what it should stop.
-- cell: pool
-- keys: prefix
-- args: worker lease_ms ...
-- The rest: attempt ids.
-- flags: flags=allow-oom
-- returns: attempt ids that are not (or no longer) this worker's to run
-- errors: none
-- cost: O(ids)
-- include: lib/clock.lua
-- include: lib/pool.lua
pool.begin(prefix, clock.now())
local expiry = string.format('%d', pool.now + lease_ms)
local unwanted = {}
for i = 3, #ARGV do
  local e = pool.get(ARGV[i])
  local mine = e and e.worker == worker and (e.state == 'R' or e.state == 'S')
  if mine then redis.call('ZADD', pool.lease, 'XX', expiry, e.id) end
  if not mine or e.state == 'S' then unwanted[#unwanted + 1] = ARGV[i] end
end
return unwanted
