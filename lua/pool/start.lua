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
local entries, answer = {}, {}
local expiry = string.format('%d', pool.now + lease_ms)
for i = 4, #ARGV, 2 do
  entries[#entries + 1] = ARGV[i]
  local e = pool.get(ARGV[i + 1])
  local letter = 'N'
  if e and e.state == 'Q' then
    e.state, e.nonce, e.worker = 'R', nonce, worker
    pool.put(e)
    letter = 'G'
  elseif e and e.state == 'R' and e.nonce == nonce then
    letter = 'G'
  end
  if letter == 'G' then redis.call('ZADD', pool.lease, expiry, e.id) end
  answer[#answer + 1] = letter
end
redis.pcall('XACK', pool.stream, pool.GROUP, unpack(entries)) -- pcall: the group may have vanished; the grant stands
redis.call('XDEL', pool.stream, unpack(entries))
return table.concat(answer)
