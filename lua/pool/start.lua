-- start: turn hints into grants. The stream entry is finished here; from now on the lease tells who runs the attempt.
-- cell: pool
-- keys: prefix
-- args: worker nonce lease_ms ...
-- The rest, two a hint: stream entry, attempt id.
-- returns: one letter a hint: G granted (again, for the same nonce), N not wanted
-- errors: none
-- cost: O(hints)
-- include: lib/clock.lua
-- include: lib/pool.lua
pool.begin(prefix, clock.now())
local entries, ids, leases = {}, {}, {}
for i = 4, #ARGV, 2 do
  entries[#entries + 1], ids[#ids + 1] = ARGV[i], ARGV[i + 1]
end
local answer, expiry = pool.grant(ids, nonce, worker), format('%d', pool.now + lease_ms)
for k, letter in ipairs(answer) do
  if letter == 'G' then leases[#leases + 1], leases[#leases + 2] = expiry, ids[k] end
end
pool.save()
bulk('ZADD', pool.lease, leases)
redis.pcall('XACK', pool.stream, pool.GROUP, unpack(entries)) -- pcall: the group may have vanished; the grant stands
call('XDEL', pool.stream, unpack(entries))
return table.concat(answer)
