-- forget_run: every trace of one run that has ended (or, with force, of any run whose attempts have been stopped).
-- cell: shard
-- keys: prefix
-- args: dag run_id force
-- returns: 1, or 0 if the run is active
-- errors: RESHARDED
-- cost: O(its attempts with logs)
-- include: lib/shut.lua
local closed = shut.refused(prefix)
if closed then return closed end
local tail = dag .. ':' .. run_id
local key = prefix .. 'run:' .. tail
local state = redis.call('HGET', key, 'state')
if force ~= '1' and (state == 'running' or state == 'queued') then return 0 end
local generation = redis.call('HGET', prefix .. 'dag:' .. dag, 'generation')
local name = (generation and generation ~= '0') and dag .. '~' .. generation or dag
for _, log in ipairs(redis.call('HKEYS', prefix .. 'logs:' .. tail)) do
  redis.call('UNLINK', prefix .. 'log:' .. tail .. ':' .. log)
end
for _, kind in ipairs({ 'run', 'ready', 'params', 'results', 'tries', 'once', 'keys', 'edit', 'logs' }) do
  redis.call('UNLINK', prefix .. kind .. ':' .. tail)
end
redis.call('HDEL', prefix .. 'packed:' .. dag, run_id)
redis.call('ZREM', prefix .. 'runs:' .. dag, run_id)
redis.call('ZREM', prefix .. 'dates:' .. dag, run_id)
redis.call('ZREM', prefix .. 'queue:' .. dag, run_id)
redis.call('SREM', prefix .. 'active:' .. dag, run_id)
redis.call('ZREM', prefix .. 'outbox', name .. '/' .. run_id)
for _, list in ipairs({ 'queued_runs', 'running_runs', 'recent' }) do redis.call('ZREM', prefix .. list, dag .. '/' .. run_id) end
redis.call('ZREM', prefix .. 'ended', name .. '/' .. run_id)
return 1
