-- give_back: hints or grants that were not begun go on the stream again, for whoever is free.
-- cell: pool
-- keys: prefix
-- args: nonce ...
-- The rest, two a hint: stream entry, attempt id. Only what is queued, or granted under this nonce, is given back.
-- flags: flags=allow-oom
-- returns: number given back
-- errors: none
-- cost: O(hints)
-- include: lib/clock.lua
-- include: lib/pool.lua
pool.begin(prefix, clock.now())
local given = 0
for i = 2, #ARGV, 2 do
  local fresh = redis.call('XDEL', pool.stream, ARGV[i]) == 1
  redis.pcall('XACK', pool.stream, pool.GROUP, ARGV[i])
  local e = pool.get(ARGV[i + 1])
  if e and e.state == 'R' and e.nonce == nonce then
    redis.call('ZREM', pool.lease, e.id)
    e.state, e.nonce, e.worker = 'Q', '', ''
    pool.put(e)
    pool.push(e)
    given = given + 1
  elseif e and e.state == 'S' and e.nonce == nonce then
    if pool.open() then
      pool.drop(e)
      pool.admit(e.slots)
      pool.save()
    end
  elseif e and e.state == 'Q' and fresh then
    pool.push(e)
    given = given + 1
  end
end
return given
