-- audit_fix: puts right what an audit has found twice (redsched/audit), each only if the run is still as it was seen.
-- cell: shard
-- keys: owner meta inbox timers prefix
-- args: token ...
-- The rest, six a repair: what, DAG, run id (or the name of a limit, or a backfill), task index, value, seen:
--   `state/left/edits/pending/record of the task` as it was, '' for what is no run's.
-- returns: {1 for each that was done, 0 for what has changed meanwhile}
-- errors: FENCED
-- cost: O(repairs), at most 100
-- include: lib/clock.lua
-- include: lib/lease.lua
-- include: lib/edit.lua
local refused = lease.refused(owner, meta, token)
if refused then return refused end
run.begin(prefix, inbox, clock.now())

local function seen_now(dag, id, index)
  run.write()
  local v = redis.call('HMGET', run.key('run', dag, id), 'state', 'left', 'edits', 'pending', index)
  for i = 1, 5 do v[i] = v[i] or '' end
  return table.concat(v, '/', 1, 5)
end

local function put(there, add, key, remove, member, score)
  if there then return redis.call(add, key, unpack(score and { score, member } or { member })) end
  return redis.call(remove, key, member)
end

-- A task stands where its state says: in the ready set and its limits, or parked, or nowhere.
local fix = {}

function fix.place(r, index)
  local rec, member, limits = run.record(r, index), r.id .. '/' .. index, run.limits_of(r, index)
  for _, one in ipairs(run.offered(r)) do
    local waits = rec and rec.state == 'q' and rec.attempt == tonumber(one[2]) -- for its pool's word
    if one[1] == index and not waits then redis.call('SREM', run.ready_key(r), one[3]) end
  end
  for _, l in ipairs(limits) do
    l.parked = l.parked - redis.call('ZREM', l.parked_key, member)
    l.busy = l.busy - redis.call('SREM', l.busy_key, member)
    run.touched[l.name] = l
  end
  if rec and rec.state == 'r' and r.state == 'running' then return run.admit(r, index, string.format('%d', rec.attempt)) end
  if not rec or not record.LIVE[rec.state] then return end
  for _, l in ipairs(limits) do l.busy = l.busy + redis.call('SADD', l.busy_key, member) end
end

-- value: what its upstreams amount to, and the verdict of its rule (r, k, u or none).
function fix.decide(r, index, value)
  local packed, verdict = string.match(value, '^(%d+):(%a?)$')
  if packed == '0' then redis.call('HDEL', r.key, index) else redis.call('HSET', r.key, index, packed) end
  r.values[index] = packed ~= '0' and packed
  if verdict == 'r' then run.ready(r, index) elseif verdict ~= '' then run.settle(r, index, nil, verdict) end
end

function fix.count(r, _, value)
  local left, failed = string.match(value, '^(%d+),(%d+)$')
  r.left, r.failed, r.counted = tonumber(left), tonumber(failed), true
  run.changed[r] = true
  redis.call('HDEL', r.key, 'pending')
  if r.left == 0 and r.state == 'running' then run.close(r) end
end

-- When it would have been due; that may be long ago.
function fix.timer(r, index)
  local rec, task = run.record(r, index), plan.task(r.plan, index)
  local id = r.path .. '/' .. index .. '/' .. string.format('%d', rec.attempt)
  if rec.state == 'w' then
    local delay = retry.delay_ms(task, rec.failures, r.id .. '/' .. index .. '/' .. string.format('%d', rec.attempt))
    redis.call('ZADD', timers, 'NX', r.created + (tonumber(rec.ended) or 0) + delay, 'retry/' .. id)
  elseif rec.state == 'x' then
    redis.call('ZADD', timers, 'NX', r.created + (tonumber(rec.started) or 0) + task.timeout + task.grace + 10000, 'timeout/' .. id)
  end
end

-- The run stands in the lists that its state says, and in no other.
function fix.run(r)
  local d, name, plain = r.dag, r.path, r.dag.id .. '/' .. r.id
  local created, running, queued = string.format('%d', r.created), r.state == 'running', r.state == 'queued'
  local v = redis.call('HMGET', r.key, 'started', 'ended', 'late')
  put(running, 'SADD', d.active_key, 'SREM', r.id)
  d.active = nil
  put(running, 'ZADD', prefix .. 'running_runs', 'ZREM', plain, v[1] or created)
  put(queued, 'ZADD', d.queue_key, 'ZREM', r.id, run.order(r))
  put(queued, 'ZADD', prefix .. 'queued_runs', 'ZREM', plain, created)
  put(not running and not queued, 'ZADD', prefix .. 'ended', 'ZREM', name, v[2] or created)
  redis.call('ZADD', prefix .. 'runs:' .. d.id, 'NX', created, r.id)
  if run.logical(r) ~= '' then redis.call('ZADD', prefix .. 'dates:' .. d.id, run.logical(r), r.id) end
  local ready = running and redis.call('EXISTS', run.ready_key(r)) == 1
  if ready then run.woken[name] = true else redis.call('DEL', run.ready_key(r)) end
  if ready then redis.call('ZADD', prefix .. 'outbox', 'NX', run.now, name) else redis.call('ZREM', prefix .. 'outbox', name) end
  if not running and not queued then
    local e = run.ended
    e[#e + 1], e[#e + 2], e[#e + 3] = plain, r.state, '0'
  end
  local t = redis.call('HMGET', r.plan.key, 'run_timeout', 'deadline')
  if running and t[1] then redis.call('ZADD', timers, 'NX', (tonumber(v[1]) or run.now) + t[1], 'expire/' .. name) end
  if (running or queued) and t[2] and not run.is_backfill(r) and not v[3] then
    redis.call('ZADD', timers, 'NX', (tonumber(run.logical(r)) or r.created) + t[2], 'deadline/' .. name)
  end
  if queued then run.start_next(d) end
end

-- A big edit goes on; if what it had to do is gone, with what it has done.
function fix.edit(r)
  if redis.call('EXISTS', run.key('edit', r.dag.id, r.id)) == 1 then return run.continue('edit', r.path) end
  edit.finish(r)
end

function fix.reopen(r)
  if r.state == 'running' then run.reopen(r) end
end

-- What is no run's. Each looks again before it writes.
local other = {}

-- No such run: no list names it. (A packed one stays among the DAG's runs.)
function other.gone(dag, id)
  if redis.call('EXISTS', run.key('run', dag, id)) == 1 then return end
  local d = run.dag(dag)
  local name = (d and d.name or dag) .. '/' .. id
  for _, list in ipairs({ 'queued_runs', 'running_runs' }) do redis.call('ZREM', prefix .. list, dag .. '/' .. id) end
  for _, list in ipairs({ 'outbox', 'ended' }) do redis.call('ZREM', prefix .. list, name) end
  redis.call('SREM', prefix .. 'active:' .. dag, id)
  if d then d.active = nil end
  redis.call('ZREM', prefix .. 'queue:' .. dag, id)
  local packed = redis.call('HEXISTS', prefix .. 'packed:' .. dag, id) == 1
  if not packed then
    for _, list in ipairs({ 'runs:', 'dates:' }) do redis.call('ZREM', prefix .. list .. dag, id) end
    redis.call('ZREM', prefix .. 'recent', dag .. '/' .. id)
  elseif not redis.call('ZSCORE', prefix .. 'runs:' .. dag, id) then
    redis.call('ZADD', prefix .. 'runs:' .. dag, run.now, id)
  end
  if d and not d.deleted then run.start_next(d) end
  return true
end

local function live(d, member)
  local id, index = string.match(member, '^([^/]+)/(%d+)$')
  local r = id and run.open(d.name, id)
  local rec = r and run.record(r, index)
  return rec and record.LIVE[rec.state] and rec
end

-- A limit lets go of what does not stand under it; whoever is next takes the place.
local function leave(dag, name, count, command, member, max, keeps)
  local d = run.dag(dag)
  local rec = d and live(d, member)
  if not d or (rec and keeps(rec)) then return end
  local l = run.limit(d, name, name == d.id and (d.paused and 0 or d.max_tasks) or tonumber(max))
  local gone = redis.call(command, l[count .. '_key'], member)
  l[count] = l[count] - gone
  if l.max >= 0 then run.touched[name] = l end
  return gone == 1
end

function other.not_busy(dag, name, member, max)
  return leave(dag, name, 'busy', 'SREM', member, max, function() return true end)
end

function other.not_parked(dag, name, member, max)
  return leave(dag, name, 'parked', 'ZREM', member, max, function(rec) return rec.state == 'r' end)
end

function other.unpark(dag, name, _, max)
  local d = run.dag(dag)
  if not d then return end
  local l = run.limit(d, name, name == d.id and (d.paused and 0 or d.max_tasks) or tonumber(max))
  run.touched[name] = l
  return l.parked > 0 and l.busy < l.max
end

function other.next(dag)
  local d = run.dag(dag)
  if not d or d.deleted then return end
  run.start_next(d)
  return true
end

function other.inactive(dag, id)
  local d = run.dag(dag)
  local r = d and run.open(d.name, id)
  if not d or (r and r.state == 'running') or redis.call('SREM', d.active_key, id) == 0 then return end
  d.active = nil
  run.start_next(d)
  return true
end

function other.not_queued(dag, id)
  local d = run.dag(dag)
  local r = d and run.open(d.name, id)
  if not d or (r and r.state == 'queued') or redis.call('ZREM', d.queue_key, id) == 0 then return end
  run.start_next(d)
  return true
end

function other.slot(dag)
  local key = prefix .. 'dag:' .. dag
  local v = redis.call('HMGET', key, 'slot', 'paused', 'deleted')
  return v[1] and v[2] ~= '1' and not v[3] and redis.call('ZADD', prefix .. 'slots', 'NX', 1, dag) == 1
end

function other.listed(dag)
  return run.dag(dag) and redis.call('SADD', prefix .. 'dags', dag) == 1
end

function other.backfill(dag, id, run_id)
  if run_id ~= '' then
    local d = run.dag(dag)
    local r = d and run.open(d.name, run_id)
    if not d or (r and (r.state == 'running' or r.state == 'queued')) then return end
    redis.call('SREM', run.key('backfill_runs', dag, id), run_id)
  end
  if redis.call('HGET', run.key('backfill', dag, id), 'state') ~= 'running' then return run_id ~= '' end
  redis.call('ZADD', prefix .. 'backfill_look', 0, dag .. '/' .. id)
  return true
end

-- An attempt that is wanted is not to be stopped.
function other.stop(_, _, stop)
  local r, _, rec, attempt = run.attempt(string.match(stop, '^[^/]+/(.+)$'))
  if not r or not rec or rec.attempt ~= attempt or not record.LIVE[rec.state] then return end
  return redis.call('SREM', prefix .. 'stops', stop) == 1
end

function other.timer(_, _, timer)
  return redis.call('ZREM', timers, timer) == 1
end

local done = {}
for i = 2, #ARGV, 6 do
  local what, dag, id, index, value, seen = unpack(ARGV, i, i + 5)
  local ok
  if other[what] and seen == '' then
    ok = other[what](dag, id, index, value)
  else
    local d = run.dag(dag)
    local r = d and not d.deleted and run.open(d.name, id)
    ok = r and seen_now(dag, id, index) == seen
    if ok then fix[what](r, index, value) end
  end
  done[#done + 1] = ok and 1 or 0
end
run.finish()
run.wake()
run.continue('wake', '-') -- the owner looks at timers and slots anew
return done
