-- The compiled plan of a DAG version, read by task index. A plan never changes under its digest, so what was read is kept
-- from call to call, as far as KEEP tasks.
local plan = { kept = {}, count = 0, KEEP = 4000 }

local TASK = '^([^,]*),(%d+),(%-?%d+),(%d+),(%d+),([^,]*),(%d+),([^,]*),(%d*),(%d*),(%a*),(%d*)$'

function plan.open(prefix, dag, digest)
  local key = prefix .. 'plan:' .. dag .. ':' .. digest
  local p = plan.kept[key]
  if not p then
    if plan.count > plan.KEEP then plan.kept, plan.count = {}, 0 end
    p = { key = key, tasks = {}, downstream = {}, below = {} }
    plan.kept[key] = p
  end
  return p
end

-- What is said of the whole DAG.
function plan.head(p)
  if p.head then return p.head end
  local v = redis.call('HMGET', p.key, 'n', 'roots', 'run_timeout', 'deadline', 'hooks')
  local head = { n = v[1], roots = v[2], run_timeout = tonumber(v[3]) or 0, deadline = tonumber(v[4]), hooks = v[5] or '' }
  if v[1] then p.head = head end
  return head
end

function plan.task(p, index)
  local task = p.tasks[index]
  if task then return task end
  local pool, slots, priority, retries, delay, backoff, max_delay, jitter, timeout, grace, flags, max_active =
    string.match(redis.call('HGET', p.key, index), TASK)
  task = { pool = pool, place = slots .. ',' .. priority .. ',', slots = tonumber(slots), priority = priority, retries = tonumber(retries), delay = tonumber(delay),
    backoff = tonumber(backoff), max_delay = tonumber(max_delay), jitter = tonumber(jitter),
    timeout = tonumber(timeout) or 0, grace = tonumber(grace) or 0, allow_failure = string.find(flags, 'a', 1, true) ~= nil,
    keyed = string.find(flags, 'k', 1, true) ~= nil, max_active = tonumber(max_active) or 0 }
  p.tasks[index] = task
  plan.count = plan.count + 1
  return task
end

-- `child:upstreams:rule,…` as text: whoever walks it keeps a position, so that a fan of 10,000 is not parsed to take 500.
function plan.downstream(p, index)
  local text = p.downstream[index]
  if text then return text end
  text = redis.call('HGET', p.key, 'd' .. index)
  if not text and redis.call('EXISTS', p.key) == 0 then return '' end
  p.downstream[index] = text or ''
  plan.count = plan.count + 1
  return text or ''
end

-- The indexes of its direct downstream.
function plan.below(p, index)
  local below = p.below[index]
  if below then return below end
  below = {}
  for child in string.gmatch(plan.downstream(p, index), '(%d+):%d+:%a') do below[#below + 1] = child end
  p.below[index] = below
  return below
end

-- The downstream task at a position: child, its number of upstreams, its rule, the next position; nil at the end.
function plan.child(text, position)
  return string.match(text, '(%d+):(%d+):(%a)()', position)
end
