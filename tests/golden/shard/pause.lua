-- A cell is shut while shards are being moved, and for good if it is none any more: then `closed` says "from to", or "to".
local shut = {}

-- The refusal of everybody but schedulers, whom their fence refuses; nil if the cell is open.
function shut.refused(prefix)
  local word = redis.call('GET', prefix .. 'closed')
  return word and redis.error_reply('RESHARDED ' .. word) or nil
end
local prefix = KEYS[1]
local inbox = KEYS[2]
local dag = ARGV[1]
local paused = ARGV[2]
-- pause: a paused DAG starts nothing more (tasks that run go on); resumed, what waited goes on in its order.
-- cell: shard
-- keys: prefix inbox
-- args: dag paused
-- returns: 1 if that changed something, else 0
-- errors: NOTFOUND, RESHARDED
-- cost: O(1); what waited is offered by the owner in slices
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
