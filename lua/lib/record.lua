-- include: lib/call.lua
-- A task's field in its run's hash, by task index.
--   absent            `none`, no upstream has settled yet
--   an integer        `none`; S + 2^14 F + 2^28 K of the upstreams that have settled (so they add up)
--   <letter><attempt>,<failures>,<losses>,<ready>,<queued>,<started>,<ended>,<worker>
-- Times are milliseconds since the run was created. A record stays under 64 bytes, else Redis unpacks the whole hash.
local record = {}

record.SUCCESS, record.FAILED, record.SKIPPED = 1, 16384, 268435456
record.CLASS = { s = record.SUCCESS, f = record.FAILED, u = record.FAILED, k = record.SKIPPED, c = record.FAILED }
record.LIVE = { r = true, q = true, x = true }
record.SETTLED = { s = true, f = true, k = true, u = true, c = true }

local PATTERN = '^(%a)(%d+),(%d*),(%d*),(%d*),(%d*),(%d*),(%d*),(%d*)$'

-- Whether a field's value, as far as it is known, is a record.
function record.decided(value)
  return value and byte(value) > 57 -- a letter
end

function record.decode(value)
  if not value then return nil end
  local state, attempt, failures, losses, ready, queued, started, ended, worker = string.match(value, PATTERN)
  if not state then return nil end
  return { state = state, attempt = tonumber(attempt), failures = tonumber(failures) or 0, losses = tonumber(losses) or 0,
    ready = ready, queued = queued, started = started, ended = ended, worker = worker }
end

function record.encode(r)
  return r.state .. string.format('%d', r.attempt) .. ',' .. (r.failures > 0 and string.format('%d', r.failures) or '') .. ','
    .. (r.losses > 0 and string.format('%d', r.losses) or '') .. ',' .. r.ready .. ',' .. r.queued .. ',' .. r.started .. ',' .. r.ended .. ',' .. r.worker
end

-- The commonest changes, from text to text; nil if the record is not what the change begins with.

-- A task's first attempt is ready, or offered already.
function record.first(ready, offered)
  if offered then return 'q1,,,' .. ready .. ',' .. ready .. ',,,' end
  return 'r1,,,' .. ready .. ',,,,'
end

local function relabel(value, from, to, attempt, queued)
  local head, rest = match(value, '^' .. from .. '(' .. attempt .. ',%d*,%d*,%d*),%d*(,.*)$')
  return head and to .. head .. ',' .. queued .. rest
end

-- Its pool has the attempt.
function record.queue(value, attempt, queued)
  return relabel(value, 'r', 'q', attempt, queued)
end

-- It has not, after all.
function record.unqueue(value, attempt)
  return relabel(value, 'q', 'r', attempt, '')
end

local FIRST = '^([rqx])(1,%d*),%d*,(%d*,%d*),'

-- The attempt has succeeded; what it was before (r, q or x), too. A success ends a row of losses.
function record.succeed(value, attempt, started, ended, worker)
  local pattern = attempt == '1' and FIRST or '^([rqx])(' .. attempt .. ',%d*),%d*,(%d*,%d*),'
  local state, head, times = match(value, pattern)
  if not state then return nil end
  return 's' .. head .. ',,' .. times .. ',' .. started .. ',' .. ended .. ',' .. worker, state
end

function record.counts(packed)
  local success = packed % record.FAILED
  local failed = math.floor(packed / record.FAILED) % record.FAILED
  return success, failed, math.floor(packed / record.SKIPPED)
end
