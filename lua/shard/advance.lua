-- advance: the heart. Notes what pools have taken, applies a slice of the inbox, fires due timers, returns what became ready.
-- cell: shard
-- keys: owner meta inbox timers prefix
-- args: token limit ...
-- The rest of args: attempt ids that their pools have taken since the last call (they become `queued`).
-- returns: {applied, 1 if the inbox holds more, next timer (ms) or 0, runs in the outbox, offers, ended, stops, next slot (ms) or 0,
--   when to look at a backfill (ms) or -1, when to deliver a hook (ms) or 0}
--   offers {attempt id, pool, slots, priority, group, weight, payload, …} · ended {dag/run, state, ms, …} · stops {pool/attempt id, …}
-- errors: FENCED
-- cost: O(entries + their direct downstream), at most `limit` entries and 1000 steps a call (~10 ms)
-- include: lib/clock.lua
-- include: lib/lease.lua
-- include: lib/edit.lua
-- include: lib/cancel.lua

local refused = lease.refused(owner, meta, token)
if refused then return refused end
run.begin(prefix, inbox, clock.now())

-- What is said about a run that is being edited waits until that is done.
local function frozen(f)
  local name, id = string.match(f[4], '^([^/]+)/([^/]+)')
  local r = name and run.open(name, id)
  if not r or not r.frozen or f[2] == 'edit' then return false end
  redis.call('XADD', inbox, '*', unpack(f))
  return true
end

local function stale()
  redis.call('HINCRBY', meta, 'stale', 1)
end

-- Fields stand in a fixed order: kind, id, outcome, ms, worker, reason, extra.
local apply = {}

function apply.finished(f, at)
  local r, index, rec, attempt = run.attempt(f[4])
  if not rec or rec.attempt ~= attempt then return stale() end
  if not record.LIVE[rec.state] then return end -- the same report once more
  local extra = f[14] ~= '' and cjson.decode(f[14]) or {}
  rec.ended, rec.started, rec.worker = run.since(r, at), run.since(r, at - tonumber(f[8])), f[10]
  if plan.task(r.plan, index).timeout > 0 then redis.call('ZREM', timers, 'timeout/' .. f[4]) end
  if f[6] == 'success' or f[6] == 'skipped' then
    run.leave(r, index, rec)
    rec.losses = 0
    if f[6] == 'skipped' then
      run.archive(r, index, rec, 'skipped', f[12])
      return run.settle(r, index, rec, 'k')
    end
    if extra.skip and #extra.skip > 0 then
      redis.call('HSET', run.key('tries', r.dag.id, r.id), 'branch' .. index, table.concat(extra.skip, ','))
      if not string.find(r.flags, 'b', 1, true) then
        r.flags = r.flags .. 'b'
        redis.call('HSET', r.key, 'head', redis.call('HGET', r.key, 'head') .. 'b')
      end
    end
    return run.settle(r, index, rec, 's')
  end
  run.fail(r, index, rec, f[12], extra.final, extra.retry_ms)
end

function apply.running(f, at)
  local r, index, rec, attempt = run.attempt(f[4])
  if not rec or rec.attempt ~= attempt then return stale() end
  if not record.LIVE[rec.state] or (rec.state == 'x' and rec.worker == f[10]) then return end
  if rec.state == 'r' then run.unready(r, index) end
  rec.state, rec.started, rec.worker = 'x', run.since(r, at - tonumber(f[8])), f[10]
  redis.call('HSET', r.key, index, record.encode(rec))
  local task = plan.task(r.plan, index)
  -- The worker stops a body at its time-out; this is the backstop for a worker that can't.
  if task.timeout > 0 then
    redis.call('ZADD', timers, at - tonumber(f[8]) + task.timeout + task.grace + 10000, 'timeout/' .. f[4])
  end
end

-- Its worker fell silent. Losses don't use up retries; more than 3 in a row are poison.
function apply.lost(f, at)
  local r, index, rec, attempt = run.attempt(f[4])
  if not rec or rec.attempt ~= attempt or not record.LIVE[rec.state] then return stale() end
  run.leave(r, index, rec)
  rec.losses = rec.losses + 1
  rec.ended, rec.worker = run.since(r, at), f[10]
  run.archive(r, index, rec, 'lost', f[12])
  if rec.losses > 3 then return run.settle(r, index, rec, 'f') end
  run.ready(r, index, rec)
end

function apply.spread(f)
  local r, index = run.attempt(f[4])
  if not r then return end
  redis.call('HINCRBY', r.key, 'pending', -1)
  run.work[#run.work + 1] = { r = r, index = index, letter = f[6], position = tonumber(f[8]) }
end

function apply.roots(f)
  local r = run.open(string.match(f[4], '^([^/]+)/(.+)$'))
  if r and r.state == 'running' then run.roots(r, tonumber(f[8])) end
end

function apply.edit(f)
  local r = run.open(string.match(f[4], '^([^/]+)/(.+)$'))
  if r and r.frozen then edit.slice(r) end
end

function apply.reopen(f)
  local r = run.open(string.match(f[4], '^([^/]+)/(.+)$'))
  if not r then return end
  redis.call('HINCRBY', r.key, 'pending', -1)
  if r.state == 'running' then run.reopen(r) end
end

function apply.wake(f)
  local r = run.open(string.match(f[4], '^([^/]+)/(.+)$'))
  if not r or r.state ~= 'running' then return end
  for _, index in ipairs(redis.call('SMEMBERS', r.ready_key)) do
    local rec = record.decode(redis.call('HGET', r.key, index))
    if rec and rec.state == 'r' then run.offer(r, index, rec.attempt) end
  end
end

function apply.limits(f)
  local d = run.dag(f[4])
  if not d then return end
  run.start_next(d)
  local first = run.limit(d, d.id, d.paused and 0 or d.max_tasks)
  run.touched[first.name] = first
end

function apply.unpark(f)
  local d = run.dag(string.match(f[4], '^[^:]+'))
  if not d then return end
  local l = run.limit(d, f[4], f[4] == d.id and (d.paused and 0 or d.max_tasks) or tonumber(f[8]))
  run.touched[l.name] = l
end

for _, id in ipairs({ unpack(ARGV, 3) }) do run.queued(id) end

local cursor = redis.call('HGET', meta, 'cursor') or '0-0'
local entries = redis.call('XRANGE', inbox, '(' .. cursor, '+', 'COUNT', limit)
local applied = 0
for _, entry in ipairs(entries) do
  if run.budget <= 0 then break end
  local f = entry[2]
  local handler = apply[f[2]]
  if handler and not frozen(f) then
    handler(f, clock.of_entry(entry[1]))
    run.spread()
  end
  cursor, applied = entry[1], applied + 1
end
if applied > 0 then
  redis.call('HSET', meta, 'cursor', cursor)
  local ms, seq = string.match(cursor, '^(%d+)-(%d+)$')
  redis.call('XTRIM', inbox, 'MINID', ms .. '-' .. string.format('%d', tonumber(seq) + 1))
end

local fire = {}

function fire.retry(id)
  local r, index, rec, attempt = run.attempt(id)
  if r and r.frozen then return redis.call('ZADD', timers, run.now + 100, 'retry/' .. id) end
  if rec and rec.state == 'w' and rec.attempt == attempt and r.state == 'running' then run.ready(r, index, rec) end
end

function fire.timeout(id)
  local r, index, rec, attempt = run.attempt(id)
  if r and r.frozen then return redis.call('ZADD', timers, run.now + 100, 'timeout/' .. id) end
  if not rec or rec.state ~= 'x' or rec.attempt ~= attempt then return end
  rec.ended = run.since(r, run.now)
  run.stop(r, index, attempt)
  run.fail(r, index, rec, 'timeout: its worker did not stop it', false)
end

-- A run that has not ended by its deadline is late; it goes on.
function fire.deadline(id)
  local r = run.open(string.match(id, '^([^/]+)/(.+)$'))
  if not r or (r.state ~= 'running' and r.state ~= 'queued') then return end
  redis.call('HSET', r.key, 'late', '1')
  run.hook(r, 'deadline')
end

-- run_timeout: what has not settled is cancelled, and the run has failed.
function fire.expire(id)
  local r = run.open(string.match(id, '^([^/]+)/(.+)$'))
  if not r or r.state ~= 'running' then return end
  if r.frozen then return redis.call('ZADD', timers, run.now + 100, 'expire/' .. id) end
  redis.call('HSET', run.key('tries', r.dag.id, r.id), 'run', 'run_timeout')
  cancel.run(r, 'failed')
end

for _, timer in ipairs(redis.call('ZRANGEBYSCORE', timers, '-inf', run.now, 'LIMIT', 0, 200)) do
  if run.budget <= 0 then break end
  run.budget = run.budget - 1
  redis.call('ZREM', timers, timer)
  local kind, id = string.match(timer, '^(%a+)/(.+)$')
  fire[kind](id)
end

run.finish()

local first = redis.call('ZRANGE', timers, 0, 0, 'WITHSCORES')
local more = (#entries == tonumber(limit) or applied < #entries) and 1 or 0
return { applied, more, first[2] or '0', redis.call('ZCARD', prefix .. 'outbox'), run.offers, run.ended, redis.call('SRANDMEMBER', prefix .. 'stops', 100),
  redis.call('ZRANGE', prefix .. 'slots', 0, 0, 'WITHSCORES')[2] or '0',
  redis.call('ZRANGE', prefix .. 'backfill_look', 0, 0, 'WITHSCORES')[2] or '-1',
  redis.call('ZRANGE', prefix .. 'hooks', 0, 0, 'WITHSCORES')[2] or '0' }
