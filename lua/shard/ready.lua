-- ready: one page of everything in the outbox, as offers. A new owner needs no other recovery; a repeated offer is a no-op.
-- What counted as queued although it is still in a ready set is ready again, until its pool says that it has it.
-- cell: shard
-- keys: owner meta inbox prefix
-- args: token after limit
-- `after` is the last dag/run of the page before, '' for the first.
-- returns: {next dag/run or '', offers, cursor}
-- errors: FENCED
-- cost: O(ready tasks of `limit` runs)
-- include: lib/clock.lua
-- include: lib/lease.lua
-- include: lib/run.lua
local refused = lease.refused(owner, meta, token)
if refused then return refused end
run.begin(prefix, inbox, clock.now(), true)
local start = after == '' and 0 or (redis.call('ZRANK', prefix .. 'outbox', after) or -1) + 1
local members = redis.call('ZRANGE', prefix .. 'outbox', start, start + limit - 1)
for _, member in ipairs(members) do
  local r = run.at(member)
  if not r or r.state ~= 'running' then
    redis.call('ZREM', prefix .. 'outbox', member)
  else
    run.offer_ready(r, true)
  end
end
run.write()
local last = #members == tonumber(limit) and members[#members] or ''
-- An empty inbox is applied up to now, however long ago its last entry came, or if none ever did (a shard that is new).
local empty = redis.call('XLEN', inbox) == 0
return { last, run.offer_list(), empty and string.format('%d-0', run.now) or redis.call('HGET', meta, 'cursor') or '0-0' }
