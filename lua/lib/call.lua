-- What every step needs, without being looked up each time. Nothing is there yet when a library is loaded: `begin` looks.
local call, match, find, format, byte

local function look_up()
  call, match, find, format, byte = redis.call, string.match, string.find, string.format, string.byte
end
