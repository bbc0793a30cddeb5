-- What every step needs, without being looked up each time. Nothing is there yet when a library is loaded: `begin` looks.
local call, match, find, format

local function look_up()
  call, match, find, format = redis.call, string.match, string.find, string.format
end
