-- The compiled plan of a DAG version, read by task index and kept for the length of one call.
local plan = { cache = {} }

local TASK = '^([^,]*),(%d+),(%-?%d+),(%d+),(%d+),([^,]*),(%d+),([^,]*),(%d*),(%d*),(%a*),(%d*)$'

function plan.open(prefix, dag, digest)
  local key = prefix .. 'plan:' .. dag .. ':' .. digest
  local p = plan.cache[key]
  if not p then
    p = { key = key, tasks = {}, downstream = {} }
    plan.cache[key] = p
  end
  return p
end

function plan.task(p, index)
  local task = p.tasks[index]
  if task then return task end
  local pool, slots, priority, retries, delay, backoff, max_delay, jitter, timeout, grace, flags, max_active =
    string.match(redis.call('HGET', p.key, index), TASK)
  task = { pool = pool, slots = slots, priority = priority, retries = tonumber(retries), delay = tonumber(delay),
    backoff = tonumber(backoff), max_delay = tonumber(max_delay), jitter = tonumber(jitter),
    timeout = tonumber(timeout) or 0, grace = tonumber(grace) or 0, allow_failure = string.find(flags, 'a', 1, true) ~= nil,
    keyed = string.find(flags, 'k', 1, true) ~= nil, max_active = tonumber(max_active) or 0 }
  p.tasks[index] = task
  return task
end

-- {child, its number of upstreams, its rule, child, …}: a finish costs its direct downstream and nothing else.
function plan.downstream(p, index)
  local list = p.downstream[index]
  if list then return list end
  list = {}
  local text = redis.call('HGET', p.key, 'd' .. index)
  if text then
    for child, n, rule in string.gmatch(text, '(%d+):(%d+):(%a)') do
      list[#list + 1] = child
      list[#list + 1] = tonumber(n)
      list[#list + 1] = rule
    end
  end
  p.downstream[index] = list
  return list
end
