-- pause: a paused DAG starts nothing more (tasks that run go on); resumed, what waited goes on in its order.
-- cell: shard
-- keys: prefix inbox
-- args: dag paused
-- returns: 1 if that changed something, else 0
-- errors: NOTFOUND, RESHARDED
-- cost: O(1); what waited is offered by the owner in slices
-- include: lib/shut.lua
local closed = shut.refused(prefix)
if closed then return closed end
local key = prefix .. 'dag:' .. dag
if redis.call('EXISTS', key) == 0 then return redis.error_reply('NOTFOUND DAG ' .. dag) end
if redis.call('HGET', key, 'paused') == paused then return 0 end
redis.call('HSET', key, 'paused', paused)
-- Its slots have gone on meanwhile: the owner looks at once, and its catchup says what becomes of them.
if paused == '0' and redis.call('HEXISTS', key, 'slot') == 1 then redis.call('ZADD', prefix .. 'slots', 1, dag) end
redis.call('XADD', inbox, '*', 'kind', 'limits', 'id', dag)
return 1
