-- audit: one look at some runs and at everything that is kept about them elsewhere, for whoever counts again (redsched/audit).
-- cell: shard
-- keys: prefix inbox meta
-- args: ...
-- Three a run: DAG, run id, 0. Of a run with more than 1000 records only the tasks below 500 are looked at where they stand; for those
-- after them the third is the first of the next 500: then nothing is said of the run as a whole.
-- flags: flags=no-writes
-- returns: {inbox cursor, id of the last inbox entry, looks}; fewer looks than runs: enough for one call, ask again for the rest
--   a look: {fields of the run, ready set, places, branches {index, not chosen, …}, tasks, length of its edit}
--   places, '' where it is not: active queue queued_runs running_runs outbox ended runs dates packed expire deadline, then
--   run_timeout, deadline of the plan, 1 if the DAG is gone or being deleted, its name with its generation
--   tasks, of those that are live or wait for a retry: {index, its limits, in so many busy sets, parked so often, timer, 1 if it needs one}
-- errors: none
-- cost: O(tasks of the runs), at most 1000 and one run more (10,000 tasks ~ 10 ms)
-- include: lib/clock.lua
-- include: lib/run.lua
run.begin(prefix, inbox, clock.now())
local BIG, WINDOW = 1000, 500

local function places(d, dag, id, name, plan_key)
  local plain = dag .. '/' .. id
  local t = plan_key and redis.call('HMGET', plan_key, 'run_timeout', 'deadline') or {}
  local found = {
    redis.call('SISMEMBER', prefix .. 'active:' .. dag, id) == 1 and '1',
    redis.call('ZSCORE', prefix .. 'queue:' .. dag, id),
    redis.call('ZSCORE', prefix .. 'queued_runs', plain),
    redis.call('ZSCORE', prefix .. 'running_runs', plain),
    redis.call('ZSCORE', prefix .. 'outbox', name),
    redis.call('ZSCORE', prefix .. 'ended', name),
    redis.call('ZSCORE', prefix .. 'runs:' .. dag, id),
    redis.call('ZSCORE', prefix .. 'dates:' .. dag, id),
    redis.call('HEXISTS', prefix .. 'packed:' .. dag, id) == 1 and '1',
    redis.call('ZSCORE', prefix .. 'timers', 'expire/' .. name),
    redis.call('ZSCORE', prefix .. 'timers', 'deadline/' .. name),
    t[1], t[2], (not d or d.deleted) and '1' }
  for i = 1, 14 do found[i] = found[i] or '' end
  found[15] = d and d.name or dag
  return found
end

local function branches(r, fields)
  local found = {}
  if not string.find(r.flags, 'b', 1, true) then return found end
  for i = 1, #fields, 2 do
    if string.find(fields[i], '^%d+$') then
      local list = redis.call('HGET', run.key('tries', r.dag.id, r.id), 'branch' .. fields[i])
      if list then
        found[#found + 1] = fields[i]
        found[#found + 1] = list
      end
    end
  end
  return found
end

local function timer_of(r, index, rec, task)
  local kind = rec.state == 'w' and 'retry/' or rec.state == 'x' and task.timeout > 0 and 'timeout/'
  if not kind then return '', '' end
  local id = r.dag.name .. '/' .. r.id .. '/' .. index .. '/' .. string.format('%d', rec.attempt)
  return redis.call('ZSCORE', prefix .. 'timers', kind .. id) or '', '1'
end

local function task_look(r, index, rec)
  local limits, member, busy, parked = run.limits_of(r, index), r.id .. '/' .. index, 0, 0
  for _, l in ipairs(limits) do
    busy = busy + redis.call('SISMEMBER', l.busy_key, member)
    if redis.call('ZSCORE', l.parked_key, member) then parked = parked + 1 end
  end
  local timer, needed = timer_of(r, index, rec, plan.task(r.plan, index))
  return { index, #limits, busy, parked, timer, needed }
end

-- The standing of tasks `from` to `from` + WINDOW - 1 of a big run, with what says whether it is still the same.
local function part(r, from)
  local names = { 'state', 'head', 'left', 'edits', 'pending', 'frozen' }
  for i = from, from + WINDOW - 1 do names[#names + 1] = string.format('%d', i) end
  local values, fields, ready, tasks = redis.call('HMGET', r.key, unpack(names)), {}, {}, {}
  for i, value in ipairs(values) do
    if value then
      fields[#fields + 1], fields[#fields + 2] = names[i], value
      local rec = i > 6 and record.decode(value)
      if rec and (record.LIVE[rec.state] or rec.state == 'w') then tasks[#tasks + 1] = task_look(r, names[i], rec) end
    end
  end
  for _, member in ipairs(redis.call('SMEMBERS', run.ready_key(r))) do
    local index = tonumber(string.match(member, '^%d+')) -- `<index>[/<attempt>]`
    if index >= from and index < from + WINDOW then ready[#ready + 1] = member end
  end
  return { fields, ready, places(r.dag, r.dag.id, r.id, r.path), {}, tasks, 0 }, 4 * WINDOW
end

local function look(dag, id, from)
  local d = run.dag(dag)
  local r = d and run.open(d.name, id)
  if from > 0 and r then return part(r, from) end
  local name = (d and d.name or dag) .. '/' .. id
  local fields = redis.call('HGETALL', run.key('run', dag, id))
  if not r then return { fields, {}, places(d, dag, id, name), {}, {}, 0 }, 1 end
  local tasks, big = {}, #fields > 2 * BIG
  for i = 1, #fields, 2 do
    if not big or (tonumber(fields[i]) or WINDOW) < WINDOW then
      local rec = string.find(fields[i], '^%d+$') and record.decode(fields[i + 1])
      if rec and (record.LIVE[rec.state] or rec.state == 'w') then tasks[#tasks + 1] = task_look(r, fields[i], rec) end
    end
  end
  local ready = redis.call('SMEMBERS', run.ready_key(r))
  return { fields, ready, places(d, dag, id, name, r.plan.key), branches(r, fields), tasks, redis.call('LLEN', run.key('edit', dag, id)) },
    #fields / 2 + 4 * #tasks
end

local last, looks, cost = redis.call('XREVRANGE', inbox, '+', '-', 'COUNT', 1)[1], {}, 0
for i = 1, #ARGV, 3 do
  if cost > 1000 then break end
  local found, weight = look(ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]))
  looks[#looks + 1], cost = found, cost + weight
end
return { redis.call('HGET', meta, 'cursor') or '0-0', last and last[1] or '0-0', looks }
