local prefix = KEYS[1]
-- delete: an empty pool goes away; one that holds or keeps waiting anything is refused.
-- cell: pool
-- keys: prefix
-- args:
-- returns: {OK, 0} | {BUSY, entries}
-- errors: NOTFOUND
-- cost: O(1)
if not redis.call('HGET', prefix .. 'meta', 'slots') then return redis.error_reply('NOTFOUND pool') end
local entries = redis.call('HLEN', prefix .. 'entries') + redis.call('HLEN', prefix .. 'lost')
if entries > 0 then return { 'BUSY', entries } end
redis.call('HDEL', prefix .. 'meta', 'slots')
for _, name in ipairs({ 'entries', 'held', 'lease', 'groups', 'tags', 'stream' }) do redis.call('UNLINK', prefix .. name) end
return { 'OK', 0 }
