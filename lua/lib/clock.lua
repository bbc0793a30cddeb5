-- The only clock that decides anything shared: Redis' own, in whole milliseconds (numbers over 2^53 would be rounded).
local clock = {}

function clock.now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- The instant at which a stream entry was appended, from its id.
function clock.of_entry(id)
  return tonumber(string.match(id, '^(%d+)'))
end
