-- One command for a key and many values, in parts: Lua's unpack ends at 8000.
local function bulk(command, key, list)
  for i = 1, #list, 4000 do redis.call(command, key, unpack(list, i, math.min(i + 3999, #list))) end
end
