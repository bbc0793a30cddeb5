-- include: lib/cancel.lua
-- What is due at a time: `<kind>/<attempt id or dag/run>` in the zset `timers`, by milliseconds.
local timers = {}

local fire = {}

-- A run that is being edited is looked at again in a moment.
local function later(kind, id)
  call('ZADD', run.prefix .. 'timers', run.now + 100, kind .. '/' .. id)
end

function fire.retry(id)
  local r, index, rec, attempt = run.attempt(id)
  if r and r.frozen then return later('retry', id) end
  if rec and rec.state == 'w' and rec.attempt == attempt and r.state == 'running' then run.ready(r, index, rec) end
end

function fire.timeout(id)
  local r, index, rec, attempt = run.attempt(id)
  if r and r.frozen then return later('timeout', id) end
  if not rec or rec.state ~= 'x' or rec.attempt ~= attempt then return end
  rec.ended = run.since(r, run.now)
  run.stop(r, index, attempt)
  run.fail(r, index, rec, 'timeout: its worker did not stop it', false)
end

-- A run that has not ended by its deadline is late; it goes on.
function fire.deadline(id)
  local r = run.at(id)
  if not r or (r.state ~= 'running' and r.state ~= 'queued') then return end
  run.note(r, 'late', '1')
  run.hook(r, 'deadline')
end

-- run_timeout: what has not settled is cancelled, and the run has failed.
function fire.expire(id)
  local r = run.at(id)
  if not r or r.state ~= 'running' then return end
  if r.frozen then return later('expire', id) end
  call('HSET', run.key('tries', r.dag.id, r.id), 'run', 'run_timeout')
  cancel.run(r, 'failed')
end

function timers.fire()
  for _, timer in ipairs(call('ZRANGEBYSCORE', run.prefix .. 'timers', '-inf', run.now, 'LIMIT', 0, 200)) do
    if run.budget <= 0 then return end
    run.budget = run.budget - 1
    call('ZREM', run.prefix .. 'timers', timer)
    local kind, id = match(timer, '^(%a+)/(.+)$')
    fire[kind](id)
    run.spread()
  end
end
