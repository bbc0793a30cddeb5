local owner = KEYS[1]
local fence = KEYS[2]
local scheduler = ARGV[1]
local expected = ARGV[2]
-- acquire: take a shard from the owner that the caller saw (empty: nobody), and get a new fence.
-- cell: shard
-- keys: owner fence
-- args: scheduler expected
-- flags: flags=allow-oom
-- returns: {OK, token} | {TAKEN, current token}
-- errors: none
-- cost: O(1). Said twice by the same scheduler it gives the same token.
local current = redis.call('GET', owner) or ''
local holder = string.match(current, '^(.*):%d+$') or ''
if holder == scheduler then return { 'OK', current } end
if holder ~= expected then return { 'TAKEN', current } end
local token = scheduler .. ':' .. redis.call('INCR', fence)
redis.call('SET', owner, token)
return { 'OK', token }
