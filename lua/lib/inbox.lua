-- include: lib/edit.lua
-- What the entries of an inbox say, and what follows from each. Reports of workers, many in an entry: `report` <worker>, then
-- <attempt id> and what is said of it, `<kind>,<outcome>,<ms>[\t<extra JSON>\t<reason>]`. All others: `kind`, `id`, `outcome`, `ms`.
local inbox = { PAGE = 25 }

-- Of all reports that were read, in their order: the run's path, the task's index, the attempt. `seen` were applied.
local paths, indexes, attempts, read, seen

function inbox.begin()
  paths, indexes, attempts, read, seen = {}, {}, {}, 0, 0
  inbox.applied, inbox.again = 0, false
end

-- The next entries, a few because each may hold many reports. All that they name is looked at first, so that each run is read
-- once.
function inbox.page(cursor)
  local entries = call('XRANGE', run.inbox, '(' .. cursor, '+', 'COUNT', inbox.PAGE)
  for _, entry in ipairs(entries) do
    local f = entry[2]
    if f[1] == 'report' then
      for i = 3, #f, 2 do
        read = read + 1
        local path, index, attempt = run.parts(f[i])
        paths[read], indexes[read], attempts[read] = path or '', index, attempt
        if path then run.want(path, index) end
      end
    end
  end
  return entries
end

local function stale()
  call('HINCRBY', run.prefix .. 'meta', 'stale', 1)
end

-- ---------------------------------------------------------------- reports of workers: (run, index, record, report)

local report = {}

local function choose(r, index, skip)
  call('HSET', run.key('tries', r.dag.id, r.id), 'branch' .. index, table.concat(skip, ','))
  if not string.find(r.flags, 'b', 1, true) then
    r.flags, r.head = r.flags .. 'b', r.head .. 'b'
    run.note(r, 'head', r.head)
  end
end

local function disarm(r, index, attempt)
  if plan.task(r.plan, index).timeout > 0 then
    call('ZREM', run.prefix .. 'timers', 'timeout/' .. r.path .. '/' .. index .. '/' .. attempt)
  end
end

-- What nearly every report says. False if it is not about the current attempt, or not new.
local function succeeded(r, index, attempt, at, ms, worker, extra)
  local before = run.value(r, index)
  local value, state = record.succeed(before or '', attempt, run.since(r, at - ms), run.since(r, at), worker)
  if not value then return false end
  disarm(r, index, attempt)
  run.leave(r, index, state, attempt)
  local skip = extra ~= '' and cjson.decode(extra).skip
  if skip and #skip > 0 then choose(r, index, skip) end
  run.settled(r, index, value, 's')
  return true
end

function report.finished(r, index, rec, e)
  if not record.LIVE[rec.state] then return end -- the same report once more
  local extra = e.extra ~= '' and cjson.decode(e.extra) or {}
  rec.ended, rec.started, rec.worker = run.since(r, e.at), run.since(r, e.at - e.ms), e.worker
  disarm(r, index, e.attempt)
  if e.outcome ~= 'skipped' then return run.fail(r, index, rec, e.reason, extra.final, extra.retry_ms) end
  run.leave(r, index, rec.state, rec.attempt)
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
    call('ZADD', run.prefix .. 'timers', e.at - e.ms + task.timeout + task.grace + 10000,
      'timeout/' .. r.path .. '/' .. index .. '/' .. e.attempt)
  end
end

-- Its worker fell silent. Losses don't use up retries; more than 3 in a row are poison.
function report.lost(r, index, rec, e)
  if not record.LIVE[rec.state] then return stale() end
  run.leave(r, index, rec.state, rec.attempt)
  rec.losses = rec.losses + 1
  rec.ended, rec.worker = run.since(r, e.at), e.worker
  run.archive(r, index, rec, 'lost', e.reason)
  if rec.losses > 3 then return run.settle(r, index, rec, 'f') end
  run.ready(r, index, rec)
end

local function apply_report(r, index, attempt, said, at, worker)
  local ms, extra = match(said, '^finished,success,(%d+)\t?([^\t]*)')
  if ms and succeeded(r, index, attempt, at, ms, worker, extra) then return end
  local rec = run.record(r, index)
  if not rec or rec.attempt ~= tonumber(attempt) then return stale() end
  if ms then return end -- the same once more
  local kind, outcome, took, more, reason = match(said, '^(%a+),(%a*),(%d+)\t?([^\t]*)\t?(.*)$')
  report[kind](r, index, rec, { attempt = attempt, outcome = outcome, ms = tonumber(took), worker = worker, at = at, reason = reason, extra = more })
end

-- What is said about a run that is being edited waits, at the end of the inbox, until that is done.
local function apply_reports(f, at)
  local waits = {}
  for i = 3, #f, 2 do
    seen = seen + 1
    local r = run.at(paths[seen])
    if not r then
      stale()
    elseif r.frozen then
      waits[#waits + 1], waits[#waits + 2] = f[i], f[i + 1]
    else
      apply_report(r, indexes[seen], attempts[seen], f[i + 1], at, f[2])
    end
  end
  if #waits > 0 then inbox.put_back({ f[1], f[2], unpack(waits) }) end
end

-- ---------------------------------------------------------------- everything else: (run, fields)

local apply = {}

function apply.spread(r, f)
  call('HINCRBY', r.key, 'pending', -1)
  run.work[#run.work + 1] = { r = r, index = match(f[4], '/(%d+)/%d+$'), letter = f[6], position = tonumber(f[8]) }
end

function apply.roots(r, f)
  if r.state == 'running' then run.roots(r, tonumber(f[8])) end
end

function apply.edit(r)
  if r.frozen then edit.slice(r) end
end

function apply.reopen(r)
  call('HINCRBY', r.key, 'pending', -1)
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
  local d = run.dag(match(f[4], '^[^:]+'))
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
    local path = match(f[4], '^[^/]+/[^/]+')
    local r = path and run.at(path)
    if r and r.frozen and kind ~= 'edit' then return inbox.put_back(f) end
    if r then apply[kind](r, f) end
  end
end

function inbox.put_back(f)
  call('XADD', run.inbox, '*', unpack(f))
  inbox.again = true
end

-- Applies one entry.
function inbox.apply(id, f)
  if f[1] == 'report' then
    apply_reports(f, clock.of_entry(id))
    inbox.applied = inbox.applied + (#f - 2) / 2
  else
    apply_other(f)
    inbox.applied = inbox.applied + 1
  end
end
