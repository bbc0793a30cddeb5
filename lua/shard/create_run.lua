-- create_run: a run of the DAG's current version. Its roots become ready, or it is queued over max_active_runs.
-- cell: shard
-- keys: prefix inbox
-- args: dag run_id kind logical params nonce keys
-- logical: ms or ''. params: JSON or ''. keys: JSON of task index -> concurrency key, or ''. nonce: made by the caller, so that a repeated call gets the same answer.
-- returns: {CREATED | EXISTS, state, run id}
-- errors: NOTFOUND
-- cost: O(its roots), at most 1000 of them in this call
-- include: lib/clock.lua
-- include: lib/run.lua
run.begin(prefix, inbox, clock.now())
local d = run.dag(dag)
if not d then return redis.error_reply('NOTFOUND DAG ' .. dag) end
local index_key, dates_key, key = prefix .. 'runs:' .. dag, prefix .. 'dates:' .. dag, run.key('run', dag, run_id)
local info = redis.call('HMGET', prefix .. 'dag:' .. dag, 'digest', 'deleted')
if info[2] then return redis.error_reply('NOTFOUND DAG ' .. dag .. ' (it is being deleted)') end
if redis.call('ZSCORE', index_key, run_id) then
  local known = redis.call('HMGET', key, 'nonce', 'state')
  return { known[1] == nonce and 'CREATED' or 'EXISTS', known[2] or 'ended', run_id }
end
if logical ~= '' then
  local taken = redis.call('ZRANGEBYSCORE', dates_key, logical, logical, 'LIMIT', 0, 1)[1]
  if taken then return { 'EXISTS', redis.call('HGET', run.key('run', dag, taken), 'state') or 'ended', taken } end
end

local version = redis.call('HGET', prefix .. 'dag:' .. dag, 'version')
local plan_key = plan.open(prefix, dag, info[1]).key
local head = version .. ',' .. info[1] .. ',' .. kind .. ',' .. logical .. ',' .. string.format('%d', run.now) .. ',' .. (params ~= '' and 'p' or '')
redis.call('HSET', key, 'state', 'queued', 'head', head, 'left', redis.call('HGET', plan_key, 'n'), 'nonce', nonce)
redis.call('ZADD', index_key, run.now, run_id)
redis.call('ZADD', prefix .. 'queued_runs', run.now, dag .. '/' .. run_id)
redis.call('ZADD', prefix .. 'recent', run.now, dag .. '/' .. run_id)
redis.call('ZREMRANGEBYRANK', prefix .. 'recent', 0, -1001) -- for lists over all DAGs; each DAG's own list is whole
if logical ~= '' then redis.call('ZADD', dates_key, logical, run_id) end
if params ~= '' then redis.call('SET', run.key('params', dag, run_id), params) end
if keys ~= '' then
  for index, value in pairs(cjson.decode(keys)) do redis.call('HSET', run.key('keys', dag, run_id), index, value) end
end
redis.call('ZADD', d.queue_key, logical ~= '' and logical or run.now, run_id)
run.start_next(d)
run.finish()
run.wake()
return { 'CREATED', run.open(d.name, run_id).state, run_id }
