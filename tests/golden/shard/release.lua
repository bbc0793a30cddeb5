local owner = KEYS[1]
local token = ARGV[1]
-- release: hand a shard over at once.
-- cell: shard
-- keys: owner
-- args: token
-- flags: flags=allow-oom
-- returns: 1 if it was the caller's, else 0
-- errors: none
-- cost: O(1)
if redis.call('GET', owner) ~= token then return 0 end
redis.call('DEL', owner)
return 1
