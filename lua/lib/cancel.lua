-- include: lib/run.lua
-- Nothing of a run starts any more; what runs is to be stopped, and keeps its slot in the pool until it has.
local cancel = {}

-- The run ends as `state`; returns how many attempts are to be stopped.
function cancel.run(r, state)
  local stopped = 0
  run.write()
  local fields = redis.call('HGETALL', r.key)
  for i = 1, #fields, 2 do
    local rec = string.find(fields[i], '^%d') and record.decode(fields[i + 1])
    if rec and not record.SETTLED[rec.state] then
      if record.LIVE[rec.state] then
        run.leave(r, fields[i], rec.state, rec.attempt)
        run.stop(r, fields[i], rec.attempt)
        stopped = stopped + 1
      end
      rec.state, rec.ended = 'c', run.since(r, run.now)
      run.put(r, fields[i], rec)
      r.left, r.counted = r.left - 1, true
    end
  end
  run.end_as(r, state)
  return stopped
end
