local prefix = KEYS[1]
local fence = ARGV[1]
local idle_ms = ARGV[2]
-- tidy: take consumers out of the group that have nothing pending and have not asked for long.
-- cell: pool
-- keys: prefix
-- args: fence idle_ms
-- flags: flags=allow-oom
-- returns: number taken out
-- errors: FENCED
-- cost: O(consumers)
local seen = redis.call('HGET', prefix .. 'meta', 'fence:leader') or '0'
if tonumber(fence) < tonumber(seen) then return redis.error_reply('FENCED leader shows fence ' .. fence .. ', this pool has seen ' .. seen) end
local consumers = redis.pcall('XINFO', 'CONSUMERS', prefix .. 'stream', 'workers')
if consumers.err then return 0 end
local gone = 0
for _, flat in ipairs(consumers) do
  local c = {}
  for i = 1, #flat, 2 do c[flat[i]] = flat[i + 1] end
  if c.pending == 0 and c.idle > tonumber(idle_ms) then
    redis.call('XGROUP', 'DELCONSUMER', prefix .. 'stream', 'workers', c.name)
    gone = gone + 1
  end
end
return gone
