local leader = KEYS[1]
local token = ARGV[1]
-- resign: a leader whose fence somebody has seen a higher one than gives up; the next election brings a higher fence.
-- cell: control
-- keys: leader
-- args: token
-- flags: flags=allow-oom
-- returns: 1 if it was the caller's, else 0
-- errors: none
-- cost: O(1)
if redis.call('GET', leader) ~= token then return 0 end
return redis.call('DEL', leader)
