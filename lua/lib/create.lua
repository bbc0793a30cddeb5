-- include: lib/run.lua
-- A run comes into being, once for each id and once for each logical date.
local create = {}

-- {CREATED | EXISTS, state, run id}. CREATED again for the nonce that made it.
function create.run(d, run_id, kind, logical, params, nonce, keys)
  local dag, prefix = d.id, run.prefix
  local index_key, dates_key, key = prefix .. 'runs:' .. dag, prefix .. 'dates:' .. dag, run.key('run', dag, run_id)
  if redis.call('ZSCORE', index_key, run_id) then
    local known = redis.call('HMGET', key, 'nonce', 'state')
    return { known[1] == nonce and 'CREATED' or 'EXISTS', known[2] or 'ended', run_id }
  end
  if logical ~= '' then
    local taken = redis.call('ZRANGEBYSCORE', dates_key, logical, logical, 'LIMIT', 0, 1)[1]
    if taken then return { 'EXISTS', redis.call('HGET', run.key('run', dag, taken), 'state') or 'ended', taken } end
  end
  local now, head = string.format('%d', run.now), plan.head(plan.open(prefix, dag, d.digest))
  local r = run.create(d, run_id, kind, logical, params ~= '' and 'p' or '', head.n, nonce)
  -- A backfill is late by its nature.
  if head.deadline and kind ~= 'backfill' then
    redis.call('ZADD', prefix .. 'timers', (tonumber(logical) or run.now) + head.deadline, 'deadline/' .. r.path)
  end
  redis.call('ZADD', index_key, now, run_id)
  run.list('recent', dag .. '/' .. run_id, run.now)
  if logical ~= '' then redis.call('ZADD', dates_key, logical, run_id) end
  if params ~= '' then redis.call('SET', run.key('params', dag, run_id), params) end
  if keys ~= '' then
    for index, value in pairs(cjson.decode(keys)) do redis.call('HSET', run.key('keys', dag, run_id), index, value) end
  end
  if redis.call('EXISTS', d.queue_key) == 0 and run.room(d) then
    run.start(r, true)
  else
    run.enqueue(r)
  end
  run.spread()
  return { 'CREATED', r.state, run_id }
end
