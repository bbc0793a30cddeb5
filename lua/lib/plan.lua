-- The compiled plan of a DAG version, read by task index. A plan never changes under its digest, so what was read is kept
-- from call to call, as far as KEEP tasks.
local plan = { kept = {}, count = 0, KEEP = 4000 }

local TASK = '^([^,]*),(%d+),(%-?%d+),(%d+),(%d+),([^,]*),(%d+),([^,]*),(%d*),(%d*),(%a*),(%d*)$'

function plan.open(prefix, dag, digest)
  local key = prefix .. 'plan:' .. dag .. ':' .. digest
  local p = plan.kept[key]
  if not p then
    if plan.count > plan.KEEP then plan.kept, plan.count = {}, 0 end
    p = { key = key, tasks = {}, downstream = {}, edges = {} }
    plan.kept[key] = p
  end
  return p
end

-- What is said of the whole DAG.
function plan.head(p)
  if p.head then return p.head end
  local v = call('HMGET', p.key, 'n', 'roots', 'run_timeout', 'deadline', 'hooks')
  local head = { n = v[1], roots = v[2], run_timeout = tonumber(v[3]) or 0, deadline = tonumber(v[4]), hooks = v[5] or '' }
  if v[1] then p.head = head end
  return head
end

function plan.task(p, index)
  local task = p.tasks[index]
  if task then return task end
  local pool, slots, priority, retries, delay, backoff, max_delay, jitter, timeout, grace, flags, max_active =
    match(call('HGET', p.key, index), TASK)
  task = { pool = pool, place = slots .. ',' .. priority .. ',', slots = tonumber(slots), priority = priority, retries = tonumber(retries), delay = tonumber(delay),
    backoff = tonumber(backoff), max_delay = tonumber(max_delay), jitter = tonumber(jitter),
    timeout = tonumber(timeout) or 0, grace = tonumber(grace) or 0, allow_failure = find(flags, 'a', 1, true) ~= nil,
    keyed = find(flags, 'k', 1, true) ~= nil, max_active = tonumber(max_active) or 0 }
  p.tasks[index] = task
  plan.count = plan.count + 1
  return task
end

-- `child:upstreams:rule,…` as text: whoever walks it keeps a position, so that a fan of 10,000 is not parsed to take 500.
function plan.downstream(p, index)
  local text = p.downstream[index]
  if text then return text end
  text = call('HGET', p.key, 'd' .. index)
  if not text and call('EXISTS', p.key) == 0 then return '' end
  p.downstream[index] = text or ''
  plan.count = plan.count + 1
  return text or ''
end

-- The same taken apart, {child, its number of upstreams, its rule, …}; false if that is long.
function plan.edges(p, index)
  local edges = p.edges[index]
  if edges ~= nil then return edges end
  local text = plan.downstream(p, index)
  edges = #text <= 1000 and {}
  if edges then
    for child, n, rule in string.gmatch(text, '(%d+):(%d+):(%a)') do
      local at = #edges
      edges[at + 1], edges[at + 2], edges[at + 3] = child, tonumber(n), rule
    end
    plan.count = plan.count + #edges / 3
  end
  p.edges[index] = edges
  return edges
end

-- The downstream task at a position: child, its number of upstreams, its rule, the next position; nil at the end.
function plan.child(text, position)
  return match(text, '(%d+):(%d+):(%a)()', position)
end
