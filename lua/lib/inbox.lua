-- include: lib/edit.lua
-- What the entries of an inbox say, and what follows from each. Workers' reports are one field,
-- `report`: <kind>\t<attempt id>\t<outcome>\t<ms>\t<worker>, with `reason` and `extra` after it where there is something to say;
-- all others: `kind`, `id`, `outcome`, `ms`.
local inbox = {}

local function stale()
  redis.call('HINCRBY', run.prefix .. 'meta', 'stale', 1)
end

-- ---------------------------------------------------------------- reports of workers: (run, index, record, report)

local report = {}

local function choose(r, index, skip)
  redis.call('HSET', run.key('tries', r.dag.id, r.id), 'branch' .. index, table.concat(skip, ','))
  if not string.find(r.flags, 'b', 1, true) then
    r.flags, r.head = r.flags .. 'b', r.head .. 'b'
    run.note(r, 'head', r.head)
  end
end

local function disarm(r, index, id)
  if plan.task(r.plan, index).timeout > 0 then redis.call('ZREM', run.prefix .. 'timers', 'timeout/' .. id) end
end

-- What nearly every report says. False if it is not about the current attempt, or not new.
local function succeeded(r, index, attempt, id, at, ms, worker, extra)
  local before = run.value(r, index)
  local value, state = record.succeed(before or '', attempt, run.since(r, at - ms), run.since(r, at), worker)
  if not value then return false end
  disarm(r, index, id)
  run.leave(r, index, state)
  local skip = extra and cjson.decode(extra).skip
  if skip and #skip > 0 then choose(r, index, skip) end
  run.settled(r, index, value, 's')
  return true
end

function report.finished(r, index, rec, e)
  if not record.LIVE[rec.state] then return end -- the same report once more
  local extra = e.extra ~= '' and cjson.decode(e.extra) or {}
  rec.ended, rec.started, rec.worker = run.since(r, e.at), run.since(r, e.at - e.ms), e.worker
  disarm(r, index, e.id)
  if e.outcome ~= 'skipped' then return run.fail(r, index, rec, e.reason, extra.final, extra.retry_ms) end
  run.leave(r, index, rec.state)
  rec.losses = 0
  run.archive(r, index, rec, 'skipped', e.reason)
  run.settle(r, index, rec, 'k')
end

function report.running(r, index, rec, e)
  if not record.LIVE[rec.state] or (rec.state == 'x' and rec.worker == e.worker) then return end
  run.running(r, index, rec, run.since(r, e.at - e.ms), e.worker)
  local task = plan.task(r.plan, index)
  -- The worker stops a body at its time-out; this is the backstop for a worker that can't.
  if task.timeout > 0 then
    redis.call('ZADD', run.prefix .. 'timers', e.at - e.ms + task.timeout + task.grace + 10000, 'timeout/' .. e.id)
  end
end

-- Its worker fell silent. Losses don't use up retries; more than 3 in a row are poison.
function report.lost(r, index, rec, e)
  if not record.LIVE[rec.state] then return stale() end
  run.leave(r, index, rec.state)
  rec.losses = rec.losses + 1
  rec.ended, rec.worker = run.since(r, e.at), e.worker
  run.archive(r, index, rec, 'lost', e.reason)
  if rec.losses > 3 then return run.settle(r, index, rec, 'f') end
  run.ready(r, index, rec)
end

local function apply_report(f, at)
  local kind, id, outcome, ms, worker = string.match(f[2], '^(%a+)\t([^\t]*)\t(%a*)\t(%d+)\t(.*)$')
  local r, index, attempt = run.named(id)
  if not r then
    stale()
    return true
  end
  if r.frozen then return false end
  if outcome == 'success' and succeeded(r, index, attempt, id, at, ms, worker, f[6] ~= '' and f[6]) then return true end
  local rec = run.record(r, index)
  if not rec or rec.attempt ~= tonumber(attempt) then
    stale()
  elseif outcome ~= 'success' then
    report[kind](r, index, rec, { id = id, outcome = outcome, ms = tonumber(ms), worker = worker, at = at, reason = f[4] or '', extra = f[6] or '' })
  end
  return true
end

-- ---------------------------------------------------------------- everything else: (run, fields)

local apply = {}

function apply.spread(r, f)
  redis.call('HINCRBY', r.key, 'pending', -1)
  run.work[#run.work + 1] = { r = r, index = string.match(f[4], '/(%d+)/%d+$'), letter = f[6], position = tonumber(f[8]) }
end

function apply.roots(r, f)
  if r.state == 'running' then run.roots(r, tonumber(f[8])) end
end

function apply.edit(r)
  if r.frozen then edit.slice(r) end
end

function apply.reopen(r)
  redis.call('HINCRBY', r.key, 'pending', -1)
  if r.state == 'running' then run.reopen(r) end
end

function apply.wake(r)
  if r.state == 'running' then run.offer_ready(r) end
end

-- About a DAG, or a run that is over.
local of_dag = {}

function of_dag.limits(f)
  local d = run.dag(f[4])
  if not d then return end
  run.start_next(d)
  local first = run.limit(d, d.id, d.paused and 0 or d.max_tasks)
  run.touched[first.name] = first
end

function of_dag.unpark(f)
  local d = run.dag(string.match(f[4], '^[^:]+'))
  if not d then return end
  local l = run.limit(d, f[4], f[4] == d.id and (d.paused and 0 or d.max_tasks) or tonumber(f[8]))
  run.touched[l.name] = l
end

-- A person ended it (cancel, mark): the owner is told with the answer, as of those that end here.
function of_dag.ended(f)
  local e = run.ended
  e[#e + 1], e[#e + 2], e[#e + 3] = f[4], f[6], f[8]
end

local function apply_other(f)
  local kind = f[2]
  if of_dag[kind] then
    of_dag[kind](f)
  elseif apply[kind] then
    local path = string.match(f[4], '^[^/]+/[^/]+')
    local r = path and run.at(path)
    if r and r.frozen and kind ~= 'edit' then return false end
    if r then apply[kind](r, f) end
  end
  return true
end

-- Applies one entry. What is said about a run that is being edited waits, at the end of the inbox, until that is done.
function inbox.apply(id, f)
  local done
  if f[1] == 'report' then done = apply_report(f, clock.of_entry(id)) else done = apply_other(f) end
  if not done then redis.call('XADD', run.inbox, '*', unpack(f)) end
end
