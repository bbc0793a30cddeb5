-- Who may write in a shard. `owner` holds "scheduler:fence"; the fence counter has no expiry, so it outlives every owner.
-- An owner's time limit is its one heartbeat in the control cell; here only identity counts.
local lease = {}

-- The refusal that every scheduler script begins with: nil if the caller owns the shard.
function lease.refused(owner, meta, token)
  local current = redis.call('GET', owner)
  if current == token then return nil end
  redis.call('HINCRBY', meta, 'refused', 1)
  return redis.error_reply('FENCED ' .. token .. ' is not the owner; ' .. (current or 'nobody') .. ' is')
end
local owner = KEYS[1]
local meta = KEYS[2]
local closed = KEYS[3]
local token = ARGV[1]
local word = ARGV[2]
-- close: while shards are being moved, only who moves them may write in a cell; what others say is refused and said again.
-- cell: shard
-- keys: owner meta closed
-- args: token word
-- word: "from to", the numbers of shards; "to" for a cell that is none of them any more; '' opens it again.
-- returns: 1
-- errors: FENCED
-- cost: O(1)
local refused = lease.refused(owner, meta, token)
if refused then return refused end
if word == '' then redis.call('DEL', closed) else redis.call('SET', closed, word) end
return 1
