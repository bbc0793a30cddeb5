-- edit_run: clear or mark tasks of a run, as planned by redsched/edit.py from what the run was a moment ago.
-- cell: shard
-- keys: prefix inbox
-- args: dag run_id seen ...
-- seen: `state/left/edits` of the run when the plan was made; if it has changed since, nothing happens.
-- The rest, two a task: index, and what it becomes:
--   none:<counters>  waits for its upstreams · ready  all it waits for is settled · rule:<letter>  decided by its rule
--   mark:<letter>    settled by a person
-- returns: {OK, new run state, attempts to be stopped} | {CHANGED, seen now} | {PACKED}
-- errors: NOTFOUND
-- cost: O(tasks named)
-- include: lib/clock.lua
-- include: lib/run.lua
run.begin(prefix, inbox, clock.now())
local d = run.dag(dag)
local r = d and run.open(d.name, run_id)
if not r then
  if redis.call('HEXISTS', prefix .. 'packed:' .. dag, run_id) == 1 then return { 'PACKED' } end
  return redis.error_reply('NOTFOUND run ' .. run_id .. ' of DAG ' .. dag)
end
local v = redis.call('HMGET', r.key, 'left', 'edits', 'pending', 'started')
local now_seen = r.state .. '/' .. v[1] .. '/' .. (v[2] or '0')
if now_seen ~= seen or tonumber(v[3] or '0') > 0 then return { 'CHANGED', now_seen } end

local tries, results = run.key('tries', dag, run_id), run.key('results', dag, run_id)
local left, failed, stopped, ready = tonumber(v[1]), 0, 0, {}
for i = 4, #ARGV, 2 do
  local index, kind, value = ARGV[i], string.match(ARGV[i + 1], '^(%a+):?(.*)$')
  local text = redis.call('HGET', r.key, index)
  local rec = record.decode(text)
  local may_fail = plan.task(r.plan, index).allow_failure
  if rec then
    if record.LIVE[rec.state] then
      run.leave(r, index, rec)
      run.stop(r, index, rec.attempt)
      stopped = stopped + 1
    end
    if record.SETTLED[rec.state] then left = left + 1 end
    if rec.state == 'f' and not may_fail then failed = failed - 1 end
    if rec.attempt > 0 then
      redis.call('HSET', tries, 'last' .. index, string.format('%d', rec.attempt))
      local try = index .. '.' .. string.format('%d', rec.attempt)
      if redis.call('HEXISTS', tries, try) == 0 then
        local was = ({ s = 'success', r = 'cancelled', q = 'cancelled', x = 'cancelled' })[rec.state]
        if was then run.archive(r, index, rec, was, kind == 'mark' and 'marked by a person' or 'cleared') end
      end
      redis.call('HDEL', results, try)
    end
  end
  redis.call('HDEL', tries, 'mark' .. index, 'branch' .. index)
  if kind == 'none' then
    if value == '0' or value == '' then redis.call('HDEL', r.key, index) else redis.call('HSET', r.key, index, value) end
  elseif kind == 'ready' then
    redis.call('HDEL', r.key, index)
    ready[#ready + 1] = index
  else
    local attempt = kind == 'mark' and (rec and rec.attempt or tonumber(redis.call('HGET', tries, 'last' .. index) or '0')) or 0
    redis.call('HSET', r.key, index, record.encode({ state = value, attempt = attempt, failures = 0, losses = 0, ready = '', queued = '',
      started = kind == 'mark' and rec and rec.started or '', ended = run.since(r, run.now), worker = kind == 'mark' and rec and rec.worker or '' }))
    if kind == 'mark' then redis.call('HSET', tries, 'mark' .. index, value) end
    if value == 'f' and not may_fail then failed = failed + 1 end
    left = left - 1
  end
end
r.cleared = '1'
redis.call('HSET', r.key, 'left', left, 'cleared', '1')
redis.call('HINCRBY', r.key, 'edits', 1)
if #ready > 0 or r.state ~= 'running' then redis.call('HSET', r.key, 'reopen', table.concat(ready, ',')) end
if failed ~= 0 then redis.call('HINCRBY', r.key, 'failed', failed) end

local ended = r.state ~= 'running' and r.state ~= 'queued'
if left == 0 then
  if ended then
    r.state = (tonumber(redis.call('HGET', r.key, 'failed')) or 0) > 0 and 'failed' or 'success'
    redis.call('HSET', r.key, 'state', r.state)
  else
    run.close(r)
  end
elseif ended or r.state == 'queued' then
  redis.call('HSET', r.key, 'state', 'queued')
  redis.call('HDEL', r.key, 'ended')
  r.state = 'queued'
  redis.call('ZREM', prefix .. 'ended', d.name .. '/' .. run_id)
  redis.call('ZADD', prefix .. 'queued_runs', r.created, dag .. '/' .. run_id)
  redis.call('ZADD', d.queue_key, r.logical ~= '' and r.logical or string.format('%d', r.created), run_id)
  run.start_next(d)
else
  run.reopen(r)
end
run.finish()
run.wake()
return { 'OK', r.state, stopped }
