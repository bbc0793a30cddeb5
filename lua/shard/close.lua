-- close: while shards are being moved, only who moves them may write in a cell; what others say is refused and said again.
-- cell: shard
-- keys: owner meta closed
-- args: token word
-- word: "from to", the numbers of shards; "to" for a cell that is none of them any more; '' opens it again.
-- returns: 1
-- errors: FENCED
-- cost: O(1)
-- include: lib/lease.lua
local refused = lease.refused(owner, meta, token)
if refused then return refused end
if word == '' then redis.call('DEL', closed) else redis.call('SET', closed, word) end
return 1
