local staged = KEYS[1]
local seconds = ARGV[1]
local offset = ARGV[2]
-- stage: a part of what is too big for one call. It goes by itself if the call that takes it (register, edit_run) never comes.
-- cell: shard
-- keys: staged
-- args: seconds offset ...
-- offset: how many items of a list lie there before these; '' for a hash. The rest: the items, or fields and values.
-- returns: 1
-- errors: none
-- cost: O(items), at most 1000 a call
if offset == '' then
  redis.call('HSET', staged, unpack(ARGV, 3))
elseif redis.call('LLEN', staged) == tonumber(offset) then
  redis.call('RPUSH', staged, unpack(ARGV, 3))
end
redis.call('EXPIRE', staged, seconds)
return 1
