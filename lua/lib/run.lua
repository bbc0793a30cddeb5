-- include: lib/record.lua
-- include: lib/rules.lua
-- include: lib/plan.lua
-- include: lib/retry.lua
-- The life of a run and its tasks. Every change of run state goes through here, so that counters, sets, limits and the outbox
-- move together. A task's own flip from unsettled to settled guards every counter: what is said twice is counted once.
-- Work that would take long (fans, long chains of skips) stops at a budget and goes on through the inbox.
local run = {}

-- A function outlives its call: every script begins with this.
function run.begin(prefix, inbox, now)
  run.prefix, run.inbox, run.now, run.budget = prefix, inbox, now, 500
  run.dags, run.opened, run.limits, run.touched, run.woken = {}, {}, {}, {}, {}
  run.offers, run.ended, run.work, run.next_work = {}, {}, {}, 1
end

-- ---------------------------------------------------------------- looking

function run.dag(id)
  local d = run.dags[id]
  if d ~= nil then return d end
  local v = redis.call('HMGET', run.prefix .. 'dag:' .. id, 'version', 'team', 'paused', 'max_active_runs', 'max_active_tasks', 'generation', 'digest', 'deleted')
  d = false
  if v[1] then
    local p = run.prefix
    d = { id = id, version = v[1], digest = v[7], deleted = v[8] and true or false, team = v[2], paused = v[3] == '1', max_runs = tonumber(v[4]), max_tasks = tonumber(v[5]), generation = v[6],
      name = v[6] == '0' and id or (id .. '~' .. v[6]), active_key = p .. 'active:' .. id, queue_key = p .. 'queue:' .. id }
  end
  run.dags[id] = d
  return d
end

function run.key(kind, dag, id)
  return run.prefix .. kind .. ':' .. dag .. ':' .. id
end

-- The run, or nil if it is gone, packed, or belongs to an earlier DAG of the same id.
function run.open(name, id)
  local known = run.opened[name .. '/' .. id]
  if known ~= nil then return known or nil end
  local dag, generation = string.match(name, '^([^~]+)~?(%d*)$')
  local d = run.dag(dag)
  local r = false
  if d and d.name == name then
    local key = run.key('run', dag, id)
    local v = redis.call('HMGET', key, 'state', 'head', 'cleared', 'frozen')
    if v[1] then
      local version, digest, kind, logical, created, flags = string.match(v[2], '^(%d+),(%w+),(%a+),(%-?%d*),(%d+),(%a*)$')
      r = { dag = d, id = id, key = key, state = v[1], version = version, kind = kind, logical = logical, created = tonumber(created),
        flags = flags, cleared = v[3], frozen = v[4], plan = plan.open(run.prefix, dag, digest), ready_key = run.key('ready', dag, id) }
    end
  end
  run.opened[name .. '/' .. id] = r
  return r or nil
end

-- The run, index, record and attempt number that an attempt id names; the record is nil if the task is in `none`.
function run.attempt(id)
  local name, run_id, index, attempt = string.match(id, '^([^/]+)/([^/]+)/(%d+)/(%d+)$')
  local r = name and run.open(name, run_id)
  if not r then return nil end
  return r, index, record.decode(redis.call('HGET', r.key, index)), tonumber(attempt)
end

function run.since(r, ms)
  return string.format('%d', math.max(0, ms - r.created))
end

-- ---------------------------------------------------------------- ready: limits, outbox, offers

function run.offer(r, index, attempt)
  local task, d, o = plan.task(r.plan, index), r.dag, run.offers
  local backfill = r.kind == 'backfill'
  o[#o + 1] = d.name .. '/' .. r.id .. '/' .. index .. '/' .. string.format('%d', attempt)
  o[#o + 1] = task.pool
  o[#o + 1] = task.slots
  o[#o + 1] = task.priority
  o[#o + 1] = backfill and d.team .. '!backfill' or d.team
  o[#o + 1] = backfill and '0.2' or '1'
  o[#o + 1] = r.version .. ',' .. r.logical .. ',' .. r.kind .. ',' .. r.flags
end

-- A limit on how many tasks are active at a time: who is (`busy`), and the ready ones beyond it in their order (`parked`).
-- Its occupancy is the cardinality of a set, so it can't leak.
function run.limit(d, name, max)
  local l = run.limits[name]
  if not l then
    l = { dag = d, name = name, max = max, busy_key = run.prefix .. 'busy:' .. name, parked_key = run.prefix .. 'parked:' .. name }
    l.busy, l.parked = redis.call('SCARD', l.busy_key), redis.call('ZCARD', l.parked_key)
    run.limits[name] = l
  end
  return l
end

-- The limits that a task stands under: its DAG's, and its own, which counts per value of its concurrency key if it has one.
function run.limits_of(r, index)
  local d, task = r.dag, plan.task(r.plan, index)
  local first = run.limit(d, d.id, d.paused and 0 or d.max_tasks)
  if task.max_active == 0 then return { first } end
  local key = task.keyed and redis.call('HGET', run.key('keys', d.id, r.id), index)
  return { first, run.limit(d, d.id .. ':' .. (key and 'key:' .. key or index), task.max_active) }
end

local function put_in_outbox(r, index, attempt)
  redis.call('SADD', r.ready_key, index)
  run.woken[r.dag.name .. '/' .. r.id] = true
  if not r.in_outbox then
    redis.call('ZADD', run.prefix .. 'outbox', 'NX', run.now, r.dag.name .. '/' .. r.id)
    r.in_outbox = true
  end
  run.offer(r, index, attempt)
end

-- A ready task takes its place under all of its limits and goes into its run's ready set, from which it is offered;
-- or it is parked at the first limit that is full, and holds no place meanwhile. `jump`: it was first in line at that one.
function run.admit(r, index, attempt, jump)
  local limits, member = run.limits_of(r, index), r.id .. '/' .. index
  for _, l in ipairs(limits) do
    if l.busy >= l.max or (l.parked > 0 and l ~= jump) then
      -- Smaller goes first: priority, then the age of the run; both parts together stay below 2^53.
      local priority = tonumber(plan.task(r.plan, index).priority)
      redis.call('ZADD', l.parked_key, (1000 - priority) * 4000000000000 + r.created, member)
      l.parked = l.parked + 1
      run.touched[l.name] = l
      return
    end
  end
  for _, l in ipairs(limits) do
    redis.call('SADD', l.busy_key, member)
    l.busy = l.busy + 1
  end
  put_in_outbox(r, index, attempt)
end

function run.ready(r, index, rec)
  local d = r.dag
  local last = rec and rec.attempt or 0
  if not rec and r.cleared then
    last = tonumber(redis.call('HGET', run.key('tries', d.id, r.id), 'last' .. index)) or 0
  end
  local attempt = last + 1
  redis.call('HSET', r.key, index, record.encode({ state = 'r', attempt = attempt, failures = rec and rec.failures or 0,
    losses = rec and rec.losses or 0, ready = run.since(r, run.now), queued = '', started = '', ended = '', worker = '' }))
  run.admit(r, index, attempt)
end

function run.unready(r, index)
  if redis.call('SREM', r.ready_key, index) == 1 and redis.call('EXISTS', r.ready_key) == 0 then
    redis.call('ZREM', run.prefix .. 'outbox', r.dag.name .. '/' .. r.id)
    r.in_outbox = false
  end
end

-- The task stops occupying its limits, from whatever live state it was in.
function run.leave(r, index, rec)
  local member = r.id .. '/' .. index
  if rec.state == 'r' then run.unready(r, index) end
  for _, l in ipairs(run.limits_of(r, index)) do
    if rec.state == 'r' and l.parked > 0 then l.parked = l.parked - redis.call('ZREM', l.parked_key, member) end
    l.busy = l.busy - redis.call('SREM', l.busy_key, member)
    run.touched[l.name] = l
  end
end

-- Parked tasks take the places that became free, in their order.
function run.unpark(l)
  while l.parked > 0 and l.busy < l.max do
    if run.budget <= 0 then return run.continue('unpark', l.name, '', l.max) end
    run.budget = run.budget - 1
    local member = redis.call('ZPOPMIN', l.parked_key)[1]
    l.parked = l.parked - 1
    local id, index = string.match(member, '^([^/]+)/(%d+)$')
    local r = run.open(l.dag.name, id)
    local rec = r and record.decode(redis.call('HGET', r.key, index))
    if rec and rec.state == 'r' then run.admit(r, index, rec.attempt, l) end
  end
end

function run.queued(id)
  local r, index, rec, attempt = run.attempt(id)
  if not rec or rec.attempt ~= attempt or rec.state ~= 'r' then return end
  rec.state, rec.queued = 'q', run.since(r, run.now)
  redis.call('HSET', r.key, index, record.encode(rec))
  run.unready(r, index)
end

-- ---------------------------------------------------------------- settling

function run.continue(kind, id, outcome, offset)
  redis.call('XADD', run.inbox, '*', 'kind', kind, 'id', id, 'outcome', outcome or '', 'ms', offset or 0)
end

function run.archive(r, index, rec, outcome, reason)
  redis.call('HSET', run.key('tries', r.dag.id, r.id), index .. '.' .. string.format('%d', rec.attempt),
    outcome .. ',' .. rec.started .. ',' .. rec.ended .. ',' .. rec.worker .. ',' .. reason)
end

function run.settle(r, index, rec, letter)
  rec = rec or { attempt = 0, failures = 0, losses = 0, ready = '', queued = '', started = '', worker = '', ended = run.since(r, run.now) }
  rec.state = letter
  redis.call('HSET', r.key, index, record.encode(rec))
  if letter == 'f' and not plan.task(r.plan, index).allow_failure then redis.call('HINCRBY', r.key, 'failed', 1) end
  if redis.call('HINCRBY', r.key, 'left', -1) <= 0 then return run.close(r) end
  run.work[#run.work + 1] = { r = r, index = index, letter = letter, position = 1 }
end

function run.close(r)
  local failed = tonumber(redis.call('HGET', r.key, 'failed')) or 0
  run.end_as(r, failed > 0 and 'failed' or 'success')
end

function run.end_as(r, state)
  local d = r.dag
  r.state = state
  redis.call('HSET', r.key, 'state', state, 'ended', run.now)
  redis.call('DEL', r.ready_key)
  redis.call('ZREM', run.prefix .. 'outbox', d.name .. '/' .. r.id)
  redis.call('SREM', d.active_key, r.id)
  redis.call('ZREM', d.queue_key, r.id)
  redis.call('ZREM', run.prefix .. 'queued_runs', d.id .. '/' .. r.id)
  redis.call('ZREM', run.prefix .. 'running_runs', d.id .. '/' .. r.id)
  redis.call('ZADD', run.prefix .. 'ended', run.now, d.name .. '/' .. r.id)
  if r.kind == 'backfill' then run.leave_backfill(r, state) end
  if state == 'success' then run.hook(r, 'success') elseif state == 'failed' then run.hook(r, 'failure') end
  local e = run.ended
  e[#e + 1] = d.id .. '/' .. r.id
  e[#e + 1] = state
  e[#e + 1] = string.format('%d', run.now - (tonumber(redis.call('HGET', r.key, 'started')) or run.now))
  run.start_next(d)
end

-- What the DAG wants to be told is put into an outbox in the same step; the owner delivers it, at least once.
function run.hook(r, event)
  local hooks = redis.call('HGET', r.plan.key, 'hooks')
  if hooks and string.find(hooks, event, 1, true) then
    redis.call('ZADD', run.prefix .. 'hooks', run.now, r.dag.name .. '/' .. r.id .. '/' .. event .. '/' .. string.format('%d', run.now))
  end
end

-- A run of a backfill makes room for its next one.
function run.leave_backfill(r, state)
  local id = redis.call('HGET', r.key, 'backfill')
  if not id then return end
  local key = run.key('backfill', r.dag.id, id)
  if redis.call('SREM', run.key('backfill_runs', r.dag.id, id), r.id) == 0 then return end
  redis.call('HINCRBY', key, state, 1)
  if redis.call('HGET', key, 'state') == 'running' then redis.call('ZADD', run.prefix .. 'backfill_look', 0, r.dag.id .. '/' .. id) end
end

-- One downstream task hears that an upstream settled.
local function tell(r, child, n, rule, letter)
  local packed = redis.pcall('HINCRBY', r.key, child, record.CLASS[letter])
  if type(packed) ~= 'number' then return end -- it has a record: decided already
  local verdict = rules.decide[rule](n, record.counts(packed))
  if verdict == 'r' then
    run.ready(r, child)
  elseif verdict then
    run.settle(r, child, nil, verdict)
  end
end

-- A task that its upstream did not choose is skipped directly, unless it has been decided.
local function skip(r, child)
  local value = redis.call('HGET', r.key, child)
  if not value or not record.decode(value) then run.settle(r, child, nil, 'k') end
end

-- What was not chosen among the direct downstream.
local function skipped_by_choice(item)
  if item.letter ~= 's' then return {} end
  local set = {}
  local list = redis.call('HGET', run.key('tries', item.r.dag.id, item.r.id), 'branch' .. item.index)
  for child in string.gmatch(list or '', '%d+') do set[child] = true end
  return set
end

-- What follows from everything that has settled in this call, as far as the budget goes.
function run.spread()
  while run.next_work <= #run.work do
    local item = run.work[run.next_work]
    local r = item.r
    if r.state == 'running' then
      local downstream = plan.downstream(r.plan, item.index)
      local chosen_not = string.find(r.flags, 'b', 1, true) and skipped_by_choice(item) or {}
      local child, n, rule, position = plan.child(downstream, item.position)
      while child and r.state == 'running' do
        if run.budget <= 0 then return run.put_back() end
        run.budget = run.budget - 1
        if chosen_not[child] then skip(r, child) else tell(r, child, tonumber(n), rule, item.letter) end
        item.position = position
        child, n, rule, position = plan.child(downstream, position)
      end
    end
    run.next_work = run.next_work + 1
  end
end

function run.put_back()
  for i = run.next_work, #run.work do
    local item = run.work[i]
    run.continue('spread', item.r.dag.name .. '/' .. item.r.id .. '/' .. item.index .. '/0', item.letter, item.position)
    redis.call('HINCRBY', item.r.key, 'pending', 1)
  end
  run.next_work = #run.work + 1
end

-- The attempt ended without success: retry within the budget of the task, else fail.
function run.fail(r, index, rec, reason, final, retry_ms)
  local task = plan.task(r.plan, index)
  run.leave(r, index, rec)
  rec.failures, rec.losses = rec.failures + 1, 0
  run.archive(r, index, rec, 'failed', reason)
  if final or rec.failures > task.retries then return run.settle(r, index, rec, 'f') end
  local delay = retry_ms and math.min(retry_ms, retry.CEILING) or retry.delay_ms(task, rec.failures, r.id .. '/' .. index .. '/' .. string.format('%d', rec.attempt))
  if delay <= 0 then return run.ready(r, index, rec) end
  rec.state = 'w'
  redis.call('HSET', r.key, index, record.encode(rec))
  redis.call('ZADD', run.prefix .. 'timers', run.now + delay,
    'retry/' .. r.dag.name .. '/' .. r.id .. '/' .. index .. '/' .. string.format('%d', rec.attempt))
end

-- Whoever held the attempt at its pool is to be told; the owner passes it on and takes it off this set.
function run.stop(r, index, attempt)
  redis.call('SADD', run.prefix .. 'stops', plan.task(r.plan, index).pool .. '/' .. r.dag.name .. '/' .. r.id .. '/' .. index .. '/' .. string.format('%d', attempt))
end

-- ---------------------------------------------------------------- runs

function run.roots(r, offset)
  local at = 0
  for index in string.gmatch(redis.call('HGET', r.plan.key, 'roots'), '%d+') do
    at = at + 1
    if at > offset then
      if run.budget <= 0 then return run.continue('roots', r.dag.name .. '/' .. r.id, '', at - 1) end
      run.budget = run.budget - 1
      run.ready(r, index)
    end
  end
end

function run.start(r)
  r.state = 'running'
  redis.call('HSET', r.key, 'state', 'running', 'started', run.now)
  redis.call('SADD', r.dag.active_key, r.id)
  redis.call('ZREM', run.prefix .. 'queued_runs', r.dag.id .. '/' .. r.id)
  redis.call('ZADD', run.prefix .. 'running_runs', run.now, r.dag.id .. '/' .. r.id)
  local timeout = tonumber(redis.call('HGET', r.plan.key, 'run_timeout') or 0)
  if timeout > 0 then redis.call('ZADD', run.prefix .. 'timers', run.now + timeout, 'expire/' .. r.dag.name .. '/' .. r.id) end
  if redis.call('HEXISTS', r.key, 'reopen') == 1 then run.reopen(r) else run.roots(r, 0) end
end

-- A run that was cleared goes on with the tasks that are listed in `reopen`.
function run.reopen(r)
  local rest = {}
  for index in string.gmatch(redis.call('HGET', r.key, 'reopen') or '', '%d+') do
    if run.budget > 0 then
      run.budget = run.budget - 1
      run.ready(r, index)
    else
      rest[#rest + 1] = index
    end
  end
  redis.call('HDEL', r.key, 'reopen')
  if #rest > 0 then
    redis.call('HSET', r.key, 'reopen', table.concat(rest, ','))
    redis.call('HINCRBY', r.key, 'pending', 1)
    run.continue('reopen', r.dag.name .. '/' .. r.id)
  end
end

-- Queued runs of a DAG start in the order of their logical dates, as far as its limit allows.
function run.start_next(d)
  while not d.paused and redis.call('SCARD', d.active_key) < d.max_runs do
    local id = redis.call('ZRANGE', d.queue_key, 0, 0)[1]
    if not id then return end
    if run.budget <= 0 then return run.continue('limits', d.id) end
    run.budget = run.budget - 1
    local r = run.open(d.name, id)
    if r and r.frozen then return end -- when its edit is done, this is tried again
    redis.call('ZREM', d.queue_key, id)
    if r and r.state == 'queued' then run.start(r) end
  end
end

-- Every script that includes this ends with it: what follows is done, freed places are taken.
function run.finish()
  run.spread()
  repeat
    local name, l = next(run.touched)
    if name then
      run.touched[name] = nil
      run.unpark(l)
    end
  until not name
end

-- For scripts that the owner does not call: it sleeps on its inbox, and hears there which runs have something ready.
function run.wake()
  for id in pairs(run.woken) do run.continue('wake', id) end
end
