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
local id = ARGV[2]
local state = ARGV[3]
-- backfill_state: pause, resume or cancel a backfill. Runs that it has made go on (a cancel stops them one by one, see the client).
-- cell: shard
-- keys: prefix inbox
-- args: dag id state
-- state: paused | running | cancelled
-- returns: {OK | ENDED, state now}
-- errors: NOTFOUND, RESHARDED
-- cost: O(1)
local closed = shut.refused(prefix)
if closed then return closed end
local key = prefix .. 'backfill:' .. dag .. ':' .. id
local now = redis.call('HGET', key, 'state')
if not now then return redis.error_reply('NOTFOUND backfill ' .. id) end
if now == state then return { 'OK', state } end
if now == 'done' or now == 'cancelled' then return { 'ENDED', now } end
redis.call('HSET', key, 'state', state)
if state == 'running' then
  redis.call('ZADD', prefix .. 'backfill_look', 0, dag .. '/' .. id)
  redis.call('XADD', inbox, '*', 'kind', 'limits', 'id', dag)
else
  redis.call('ZREM', prefix .. 'backfill_look', dag .. '/' .. id)
end
return { 'OK', state }
