local prefix = KEYS[1]
-- reaped: the shards have heard of these losses.
-- cell: pool
-- keys: prefix
-- args: ...
-- flags: flags=allow-oom
-- returns: number taken off
-- errors: none
-- cost: O(ids)
return redis.call('HDEL', prefix .. 'lost', unpack(ARGV))
