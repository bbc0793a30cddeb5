-- Attempt ids of the current DAG of that name: `dag[~generation]/run/index/attempt`.
local ids = {}

-- dag, run id, index, attempt; nil if the attempt belongs to a DAG that was deleted, or its run is gone.
function ids.current(prefix, id)
  local dag, generation, run_id, index, attempt = string.match(id, '^([^/~]+)~?(%d*)/([^/]+)/(%d+)/(%d+)$')
  if not dag then return nil end
  local now = redis.call('HGET', prefix .. 'dag:' .. dag, 'generation')
  if now ~= (generation == '' and '0' or generation) then return nil end
  if redis.call('EXISTS', prefix .. 'run:' .. dag .. ':' .. run_id) == 0 then return nil end
  return dag, run_id, index, attempt
end
-- A cell is shut while shards are being moved, and for good if it is none any more: then `closed` says "from to", or "to".
local shut = {}

-- The refusal of everybody but schedulers, whom their fence refuses; nil if the cell is open.
function shut.refused(prefix)
  local word = redis.call('GET', prefix .. 'closed')
  return word and redis.error_reply('RESHARDED ' .. word) or nil
end
local prefix = KEYS[1]
local id = ARGV[1]
local offset = ARGV[2]
local head = ARGV[3]
local ring = ARGV[4]
local data = ARGV[5]
-- log_write: a piece of an attempt's log at its absolute offset. The head is kept, and the tail in a ring after it.
-- cell: shard
-- keys: prefix
-- args: id offset head ring data
-- head, ring: how many bytes each keeps.
-- returns: 1, or 0 if the run is gone
-- errors: RESHARDED
-- cost: O(bytes). Said twice it writes the same bytes to the same place.
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
