-- A cell is shut while shards are being moved, and for good if it is none any more: then `closed` says "from to", or "to".
local shut = {}

-- The refusal of everybody but schedulers, whom their fence refuses; nil if the cell is open.
function shut.refused(prefix)
  local word = redis.call('GET', prefix .. 'closed')
  return word and redis.error_reply('RESHARDED ' .. word) or nil
end
