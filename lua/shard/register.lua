-- register: a DAG's definition becomes its current version; the same content is no new version.
-- cell: shard
-- keys: prefix inbox
-- args: dag digest paused path team max_active_runs max_active_tasks info schedule slot look created
-- The plan `plan:<dag>:<digest>` was written before, with an expiry that this takes off. paused: '' keeps, '0', '1'.
-- schedule: JSON or '' for none; slot, look: the first slot that may become a run, and when. A schedule that has not changed goes on
-- where it is; a changed one begins there, so that it never makes runs for the past.
-- created: when its first version came (ms), by which the schedule was made; '' for now.
-- returns: {version, 1 if it is new}
-- errors: NOTFOUND (the plan has expired: write it again), CONFLICT (the DAG is being deleted), RESHARDED
-- cost: O(1)
-- include: lib/clock.lua
-- include: lib/shut.lua
local closed = shut.refused(prefix)
if closed then return closed end
local key, plan = prefix .. 'dag:' .. dag, prefix .. 'plan:' .. dag .. ':' .. digest
local known = redis.call('HMGET', key, 'version', 'digest', 'max_active_runs', 'max_active_tasks', 'deleted')
if known[5] then return redis.error_reply('CONFLICT DAG ' .. dag .. ' is being deleted') end
if redis.call('EXISTS', plan) == 0 then return redis.error_reply('NOTFOUND the plan of DAG ' .. dag) end
local version = tonumber(known[1]) or 0
local new = known[2] ~= digest
if new then
  version = version + 1
  local at = version == 1 and created ~= '' and created or string.format('%d', clock.now())
  redis.call('HSET', key, 'version', version, 'digest', digest, 'path', path, 'info', info, 'team', team,
    'max_active_runs', max_active_runs, 'max_active_tasks', max_active_tasks,
    'v' .. version, digest .. ',' .. at .. ',' .. path)
  redis.call('PERSIST', plan)
  redis.call('SADD', prefix .. 'dags', dag)
  if version == 1 then
    local generation = redis.call('HGET', prefix .. 'generations', dag) or '0'
    redis.call('HSET', key, 'created', at, 'generation', generation)
    redis.call('HSETNX', key, 'paused', '0')
  end
  redis.call('XADD', inbox, '*', 'kind', 'limits', 'id', dag)
end
if paused ~= '' then redis.call('HSET', key, 'paused', paused) end
if schedule ~= (redis.call('HGET', key, 'schedule') or '') then
  redis.call('HDEL', key, 'schedule', 'slot')
  redis.call('ZREM', prefix .. 'slots', dag)
  if schedule ~= '' then
    redis.call('HSET', key, 'schedule', schedule)
    if slot ~= '' then
      redis.call('HSET', key, 'slot', slot)
      redis.call('ZADD', prefix .. 'slots', look, dag)
    end
  end
  redis.call('XADD', inbox, '*', 'kind', 'limits', 'id', dag)
end
if paused == '0' and redis.call('HEXISTS', key, 'slot') == 1 then redis.call('ZADD', prefix .. 'slots', 'NX', 1, dag) end
return { version, new and 1 or 0 }
