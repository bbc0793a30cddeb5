local prefix = KEYS[1]
local consumer = ARGV[1]
-- leave: remove a consumer, only if nothing is pending for it: its entries would be out of everybody's reach.
-- cell: pool
-- keys: prefix
-- args: consumer
-- flags: flags=allow-oom
-- returns: 1 if it is gone, 0 if it has entries
-- errors: none
-- cost: O(1)
local pending = redis.pcall('XPENDING', prefix .. 'stream', 'workers', '-', '+', 1, consumer)
if pending.err then return 1 end
if #pending > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', prefix .. 'stream', 'workers', consumer)
return 1
