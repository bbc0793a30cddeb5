-- resized: everything is where it belongs; from now on there are so many shards.
-- cell: control
-- keys: settings owners
-- args: resizer target
-- returns: {OK} | {BUSY}: it is another's to end
-- errors: none
-- cost: O(shards)
local v = redis.call('HMGET', settings, 'shards', 'resizing', 'resizer')
if not v[2] and v[1] == target then return { 'OK' } end
if v[3] ~= resizer then return { 'BUSY' } end
redis.call('HSET', settings, 'shards', target)
redis.call('HDEL', settings, 'resizing', 'resizer', 'resizer_until')
redis.call('DEL', owners)
return { 'OK' }
