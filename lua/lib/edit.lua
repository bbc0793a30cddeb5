-- include: lib/run.lua
-- Clear and mark, task by task, as redsched/edit.py has planned them. A big edit is carried out in slices; meanwhile the
-- run is frozen: whatever else is said about it waits in the inbox.
--   none:<counters>  waits for its upstreams · ready  all it waits for is settled · rule:<letter>  decided by its rule
--   mark:<letter>    settled by a person
local edit = {}

local ARCHIVED = { s = 'success', r = 'cancelled', q = 'cancelled', x = 'cancelled' }

function edit.begin()
  edit.left, edit.failed, edit.stopped = 0, 0, 0
  edit.ready, edit.set, edit.last, edit.gone, edit.forget, edit.drop, edit.named = {}, {}, {}, {}, {}, {}, {}
end

local function leave_behind(r, index, rec, kind)
  if record.LIVE[rec.state] then
    run.leave(r, index, rec.state, rec.attempt)
    run.stop(r, index, rec.attempt)
    edit.stopped = edit.stopped + 1
  end
  if record.SETTLED[rec.state] then edit.left = edit.left + 1 end
  if rec.state == 'f' and not plan.task(r.plan, index).allow_failure then edit.failed = edit.failed - 1 end
  if rec.attempt > 0 then
    local try = index .. '.' .. string.format('%d', rec.attempt)
    edit.last[#edit.last + 1] = 'last' .. index
    edit.last[#edit.last + 1] = string.format('%d', rec.attempt)
    if ARCHIVED[rec.state] then
      edit.last[#edit.last + 1] = try
      edit.last[#edit.last + 1] = ARCHIVED[rec.state] .. ',' .. rec.started .. ',' .. rec.ended .. ',' .. rec.worker .. ','
        .. (kind == 'mark' and 'marked by a person' or 'cleared')
    end
    edit.gone[#edit.gone + 1] = try
  end
end

function edit.task(r, index, text, change)
  edit.named[index] = true
  local kind, value = string.match(change, '^(%a+):?(.*)$')
  local rec = record.decode(text)
  if rec then leave_behind(r, index, rec, kind) end
  edit.forget[#edit.forget + 1] = 'mark' .. index
  edit.forget[#edit.forget + 1] = 'branch' .. index
  if kind == 'ready' then
    edit.ready[#edit.ready + 1] = index
  elseif kind == 'none' and value ~= '0' then
    edit.set[#edit.set + 1] = index
    edit.set[#edit.set + 1] = value
    return
  elseif kind ~= 'none' then
    local marked = kind == 'mark' and rec or nil
    edit.set[#edit.set + 1] = index
    edit.set[#edit.set + 1] = record.encode({ state = value, attempt = marked and marked.attempt or 0, failures = 0, losses = 0, ready = '',
      queued = '', started = marked and marked.started or '', ended = run.since(r, run.now), worker = marked and marked.worker or '' })
    if kind == 'mark' then
      edit.last[#edit.last + 1] = 'mark' .. index
      edit.last[#edit.last + 1] = value
    end
    if value == 'f' and not plan.task(r.plan, index).allow_failure then edit.failed = edit.failed + 1 end
    edit.left = edit.left - 1
    return
  end
  edit.drop[#edit.drop + 1] = index
end

-- What the tasks of this slice need from Redis, in as few commands as it takes. A slice has at most 500 tasks.
function edit.write(r)
  run.write()
  r.values = {}
  local tries = run.key('tries', r.dag.id, r.id)
  if #edit.forget > 0 then redis.call('HDEL', tries, unpack(edit.forget)) end
  if #edit.last > 0 then redis.call('HSET', tries, unpack(edit.last)) end
  if #edit.gone > 0 then redis.call('HDEL', run.key('results', r.dag.id, r.id), unpack(edit.gone)) end
  if #edit.drop > 0 then redis.call('HDEL', r.key, unpack(edit.drop)) end
  if #edit.set > 0 then redis.call('HSET', r.key, unpack(edit.set)) end
  r.left, r.failed, r.counted = r.left + edit.left, r.failed + edit.failed, true
  run.changed[r] = true
  -- A run that waits for its turn may be edited again: the last edit says what becomes of a task.
  for index in string.gmatch(redis.call('HGET', r.key, 'reopen') or '', '%d+') do
    if not edit.named[index] then edit.ready[#edit.ready + 1] = index end
  end
  redis.call('HSET', r.key, 'cleared', '1', 'reopen', table.concat(edit.ready, ','))
  r.cleared = '1'
end

-- All tasks are done: the run goes on from there, or ends, or waits for its turn.
function edit.finish(r)
  local ended = r.state ~= 'running' and r.state ~= 'queued'
  redis.call('HDEL', r.key, 'frozen')
  r.frozen = nil
  if r.left == 0 then
    redis.call('HDEL', r.key, 'reopen')
    if not ended then return run.close(r) end
    r.state = r.failed > 0 and 'failed' or 'success'
    run.note(r, 'state', r.state)
  elseif r.state == 'running' then
    run.reopen(r)
  else
    run.note(r, 'state', 'queued')
    redis.call('HDEL', r.key, 'ended')
    r.state = 'queued'
    run.list('ended', r.path, false)
    run.enqueue(r)
  end
end

-- One slice of a staged edit: the owner's part.
function edit.slice(r)
  local key = run.key('edit', r.dag.id, r.id)
  run.write()
  local items = redis.call('LRANGE', key, 0, 499)
  redis.call('LTRIM', key, 500, -1)
  local indexes = {}
  edit.begin()
  for i = 1, #items, 2 do indexes[#indexes + 1] = items[i] end
  if #indexes > 0 then
    local texts = redis.call('HMGET', r.key, unpack(indexes))
    for i, index in ipairs(indexes) do edit.task(r, index, texts[i], items[2 * i]) end
    run.budget = run.budget - #indexes
    edit.write(r)
  end
  if redis.call('EXISTS', key) == 0 then return edit.finish(r) end
  run.continue('edit', r.path)
end
