-- A cell is shut while shards are being moved, and for good if it is none any more: then `closed` says "from to", or "to".
local shut = {}

-- The refusal of everybody but schedulers, whom their fence refuses; nil if the cell is open.
function shut.refused(prefix)
  local word = redis.call('GET', prefix .. 'closed')
  return word and redis.error_reply('RESHARDED ' .. word) or nil
end
local prefix = KEYS[1]
local dag = ARGV[1]
local step = ARGV[2]
local force = ARGV[3]
-- delete_dag: begin (nothing of the DAG starts any more) or finish (no trace of it is left) its deletion.
-- cell: shard
-- keys: prefix
-- args: dag step force
-- step: begin | finish. Between the two the caller cancels and forgets its runs, one script a run.
-- returns: begin: {OK | ACTIVE, number of active runs}; finish: {OK, 0} | {LEFT, runs left}
-- errors: NOTFOUND, RESHARDED
-- cost: begin O(1); finish O(versions)
local closed = shut.refused(prefix)
if closed then return closed end
local key = prefix .. 'dag:' .. dag
if redis.call('EXISTS', key) == 0 then return redis.error_reply('NOTFOUND DAG ' .. dag) end
if step == 'begin' then
  local active = redis.call('SCARD', prefix .. 'active:' .. dag) + redis.call('ZCARD', prefix .. 'queue:' .. dag)
  if active > 0 and force ~= '1' then return { 'ACTIVE', active } end
  redis.call('HSET', key, 'deleted', '1', 'paused', '1')
  return { 'OK', active }
end
local left = redis.call('ZCARD', prefix .. 'runs:' .. dag)
if left > 0 then return { 'LEFT', left } end
local fields = redis.call('HGETALL', key)
for i = 1, #fields, 2 do
  if string.find(fields[i], '^v%d+$') then
    redis.call('UNLINK', prefix .. 'plan:' .. dag .. ':' .. string.match(fields[i + 1], '^(%w+)'))
  end
end
for _, id in ipairs(redis.call('ZRANGE', prefix .. 'backfills:' .. dag, 0, -1)) do
  redis.call('UNLINK', prefix .. 'backfill:' .. dag .. ':' .. id, prefix .. 'backfill_runs:' .. dag .. ':' .. id)
  redis.call('ZREM', prefix .. 'backfill_look', dag .. '/' .. id)
end
for _, kind in ipairs({ 'dag', 'runs', 'dates', 'queue', 'active', 'busy', 'parked', 'packed', 'skips', 'backfills' }) do
  redis.call('UNLINK', prefix .. kind .. ':' .. dag)
end
redis.call('SREM', prefix .. 'dags', dag)
redis.call('ZREM', prefix .. 'slots', dag)
-- Attempts of the old DAG must never be taken for those of a new one with the same id.
redis.call('HINCRBY', prefix .. 'generations', dag, 1)
return { 'OK', 0 }
