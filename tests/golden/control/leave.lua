local schedulers = KEYS[1]
local leader = KEYS[2]
local scheduler = ARGV[1]
-- leave: a scheduler goes in order; its leadership is free at once.
-- cell: control
-- keys: schedulers leader
-- args: scheduler
-- flags: flags=allow-oom
-- returns: 1
-- errors: none
-- cost: O(log schedulers)
redis.call('ZREM', schedulers, scheduler)
local current = redis.call('GET', leader)
if current and string.match(current, '^(.*):%d+$') == scheduler then redis.call('DEL', leader) end
return 1
