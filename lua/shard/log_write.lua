-- log_write: a piece of an attempt's log at its absolute offset. The head is kept, and the tail in a ring after it.
-- cell: shard
-- keys: prefix
-- args: id offset head ring data
-- head, ring: how many bytes each keeps.
-- returns: 1, or 0 if the run is gone
-- errors: RESHARDED
-- cost: O(bytes). Said twice it writes the same bytes to the same place.
-- include: lib/ids.lua
-- include: lib/shut.lua
local closed = shut.refused(prefix)
if closed then return closed end
local dag, run_id, index, attempt = ids.current(prefix, id)
if not dag then return 0 end
local name = index .. '.' .. attempt
local key = prefix .. 'log:' .. dag .. ':' .. run_id .. ':' .. name
local sizes = prefix .. 'logs:' .. dag .. ':' .. run_id
local at, size, h, n = tonumber(offset), #data, tonumber(head), tonumber(ring)
local written = 0
-- The same attempt begins its log anew after it was handed back; what it said before must not show through.
if at == 0 then redis.call('DEL', key) redis.call('HDEL', sizes, name) end
if at < h then
  written = math.min(size, h - at)
  redis.call('SETRANGE', key, at, string.sub(data, 1, written))
end
-- Only the last `ring` bytes can survive: what would be overwritten in this very call is not written at all.
written = math.max(written, size - n)
while written < size do
  local place = (at + written - h) % n
  local part = math.min(size - written, n - place)
  redis.call('SETRANGE', key, h + place, string.sub(data, written + 1, written + part))
  written = written + part
end
if at + size > tonumber(redis.call('HGET', sizes, name) or '-1') then redis.call('HSET', sizes, name, string.format('%d', at + size)) end
return 1
