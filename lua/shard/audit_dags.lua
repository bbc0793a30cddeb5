-- audit_dags: one look at the limits, lines and calendars of some DAGs, with those members that no task or run stands behind.
-- cell: shard
-- keys: prefix inbox meta
-- args: ...
-- Two a DAG: its id, names of its further limits joined by '|' (its own, `<dag>`, is always looked at).
-- flags: flags=no-writes
-- returns: {inbox cursor, id of the last inbox entry, looks}
--   a look: {1 if it is there, paused, queued run that should have started, in `dags`, slot, in `slots`, limits, active runs that are not,
--   queued runs that are not, backfills {id, 1 if it should be looked at but won't be, runs that are none of its active, …}}
--   limits: {name, max, busy, parked, first that is parked, busy ones that are not, parked ones that are not}
-- errors: none
-- cost: O(members of those sets), at most 200 a set
-- include: lib/clock.lua
-- include: lib/run.lua
run.begin(prefix, inbox, clock.now())

local function record_of(d, member)
  local id, index = string.match(member, '^([^/]+)/(%d+)$')
  local r = id and run.open(d.name, id)
  return r and run.record(r, index), r, index
end

local function limit_look(d, name)
  local busy_key, parked_key = prefix .. 'busy:' .. name, prefix .. 'parked:' .. name
  local max = name == d.id and (d.paused and 0 or d.max_tasks) or -1
  local not_busy, not_parked = {}, {}
  for _, member in ipairs(redis.call('SSCAN', busy_key, 0, 'COUNT', 200)[2]) do
    local rec = record_of(d, member)
    if not rec or not record.LIVE[rec.state] then not_busy[#not_busy + 1] = member end
  end
  local line = redis.call('ZRANGE', parked_key, 0, 199)
  for i, member in ipairs(line) do
    local rec, r, index = record_of(d, member)
    if not rec or rec.state ~= 'r' then not_parked[#not_parked + 1] = member end
    if i == 1 and r and max < 0 then max = plan.task(r.plan, index).max_active end
  end
  return { name, max, redis.call('SCARD', busy_key), redis.call('ZCARD', parked_key), line[1] or '', not_busy, not_parked }
end

local function wrong_runs(d, ids, state)
  local wrong = {}
  for _, id in ipairs(ids) do
    local r = run.open(d.name, id)
    if not r or r.state ~= state then wrong[#wrong + 1] = id end
  end
  return wrong
end

local function backfill_looks(d)
  local found = {}
  for _, id in ipairs(redis.call('ZREVRANGE', prefix .. 'backfills:' .. d.id, 0, 19)) do
    local wrong = {}
    for _, run_id in ipairs(redis.call('SSCAN', run.key('backfill_runs', d.id, id), 0, 'COUNT', 200)[2]) do
      local r = run.open(d.name, run_id)
      if not r or (r.state ~= 'running' and r.state ~= 'queued') then wrong[#wrong + 1] = run_id end
    end
    local running = redis.call('HGET', run.key('backfill', d.id, id), 'state') == 'running'
    local unseen = running and not redis.call('ZSCORE', prefix .. 'backfill_look', d.id .. '/' .. id)
    found[#found + 1], found[#found + 2], found[#found + 3] = id, unseen and '1' or '', wrong
  end
  return found
end

local function look(dag, names)
  local d = run.dag(dag)
  if not d or d.deleted then return { '' } end
  local limits = { limit_look(d, dag) }
  for name in string.gmatch(names, '[^|]+') do limits[#limits + 1] = limit_look(d, name) end
  local head = redis.call('ZRANGE', d.queue_key, 0, 0)[1]
  local first = head and run.open(d.name, head)
  local room = first and first.state == 'queued' and not first.frozen and not d.paused and redis.call('SCARD', d.active_key) < d.max_runs
  return { '1', d.paused and '1' or '', room and head or '', redis.call('SISMEMBER', prefix .. 'dags', dag),
    redis.call('HGET', prefix .. 'dag:' .. dag, 'slot') or '', redis.call('ZSCORE', prefix .. 'slots', dag) or '', limits,
    wrong_runs(d, redis.call('SSCAN', d.active_key, 0, 'COUNT', 200)[2], 'running'),
    wrong_runs(d, redis.call('ZRANGE', d.queue_key, 0, 199), 'queued'), backfill_looks(d) }
end

local last, looks = redis.call('XREVRANGE', inbox, '+', '-', 'COUNT', 1)[1], {}
for i = 1, #ARGV, 2 do looks[#looks + 1] = look(ARGV[i], ARGV[i + 1]) end
return { redis.call('HGET', meta, 'cursor') or '0-0', last and last[1] or '0-0', looks }
