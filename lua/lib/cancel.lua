-- include: lib/run.lua
-- Nothing of a run starts any more; what runs is to be stopped, and keeps its slot in the pool until it has.
local cancel = {}

-- The run ends as `state`; returns how many attempts are to be stopped.
function cancel.run(r, state)
  local stopped = 0
  local fields = redis.call('HGETALL', r.key)
  for i = 1, #fields, 2 do
    local rec = string.find(fields[i], '^%d') and record.decode(fields[i + 1])
    if rec and not record.SETTLED[rec.state] then
      if record.LIVE[rec.state] then
        run.leave(r, fields[i], rec)
        run.stop(r, fields[i], rec.attempt)
        stopped = stopped + 1
      end
      rec.state, rec.ended = 'c', run.since(r, run.now)
      redis.call('HSET', r.key, fields[i], record.encode(rec))
      redis.call('HINCRBY', r.key, 'left', -1)
    end
  end
  run.end_as(r, state)
  return stopped
end
