-- The only clock that decides anything shared: Redis' own, in whole milliseconds (numbers over 2^53 would be rounded).
local clock = {}

function clock.now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- The instant at which a stream entry was appended, from its id.
function clock.of_entry(id)
  return tonumber(string.match(id, '^(%d+)'))
end
-- Who may write in a shard. `owner` holds "scheduler:fence"; the fence counter has no expiry, so it outlives every owner.
-- An owner's time limit is its one heartbeat in the control cell; here only identity counts.
local lease = {}

-- The refusal that every scheduler script begins with: nil if the caller owns the shard.
function lease.refused(owner, meta, token)
  local current = redis.call('GET', owner)
  if current == token then return nil end
  redis.call('HINCRBY', meta, 'refused', 1)
  return redis.error_reply('FENCED ' .. token .. ' is not the owner; ' .. (current or 'nobody') .. ' is')
end
-- What every step needs, without being looked up each time. Nothing is there yet when a library is loaded: `begin` looks.
local call, match, find, format, byte

local function look_up()
  call, match, find, format, byte = redis.call, string.match, string.find, string.format, string.byte
end
-- One command for a key and many values, in parts: Lua's unpack ends at 8000.
local function bulk(command, key, list)
  for i = 1, #list, 4000 do redis.call(command, key, unpack(list, i, math.min(i + 3999, #list))) end
end
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
-- Trigger rules, decided from counters: n upstreams, s success, f failed or upstream_failed, k skipped.
-- The answer is nil (wait), 'r' (run), 'k' (skipped) or 'u' (upstream_failed), given only when it can't change any more.
-- Twin of redsched/rules.py, which is the oracle of its tests. Letters: redsched/states.py TRIGGER_RULES.
local rules = {}

rules.decide = {
  -- all_success
  a = function(n, s, f, k)
    if s == n then return 'r' elseif f > 0 then return 'u' elseif s + f + k == n then return 'k' end
  end,
  -- all_failed
  b = function(n, s, f, k)
    if f == n then return 'r' elseif s + k > 0 then return 'k' end
  end,
  -- all_done
  c = function(n, s, f, k)
    if s + f + k == n then return 'r' end
  end,
  -- all_skipped
  d = function(n, s, f, k)
    if k == n then return 'r' elseif s + f > 0 then return 'k' end
  end,
  -- one_success
  e = function(n, s, f, k)
    if s > 0 then return 'r' elseif s + f + k == n then return k == n and 'k' or 'u' end
  end,
  -- one_failed
  f = function(n, s, f, k)
    if f > 0 then return 'r' elseif s + f + k == n then return 'k' end
  end,
  -- one_done
  g = function(n, s, f, k)
    if s + f > 0 then return 'r' elseif k == n then return 'k' end
  end,
  -- none_failed
  h = function(n, s, f, k)
    if f > 0 then return 'u' elseif s + k == n then return 'r' end
  end,
  -- none_failed_min_one_success
  i = function(n, s, f, k)
    if f > 0 then return 'u' elseif k == n then return 'k' elseif s + k == n then return 'r' end
  end,
  -- none_skipped
  j = function(n, s, f, k)
    if k > 0 then return 'k' elseif s + f == n then return 'r' end
  end,
  -- all_done_min_one_success
  k = function(n, s, f, k)
    if s + f + k < n then return nil elseif s > 0 then return 'r' end
    return k == n and 'k' or 'u'
  end,
  -- always
  l = function()
    return 'r'
  end,
}
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
-- How long to wait before the next attempt. Twin of redsched/retry.py.
local retry = { CEILING = 604800000 }

-- CRC-32 (IEEE), bit by bit over the low byte: Redis' `bit` library is not everywhere (fakeredis), so plain arithmetic.
local function xor(a, b)
  local result, place = 0, 1
  while a > 0 or b > 0 do
    local x, y = a % 2, b % 2
    if x ~= y then result = result + place end
    a, b, place = (a - x) / 2, (b - y) / 2, place * 2
  end
  return result
end

function retry.crc32(text)
  local crc = 4294967295
  for i = 1, #text do
    crc = xor(crc, string.byte(text, i))
    for _ = 1, 8 do
      local odd = crc % 2
      crc = (crc - odd) / 2
      if odd == 1 then crc = xor(crc, 3988292384) end
    end
  end
  return 4294967295 - crc
end

function retry.delay_ms(task, failures, seed)
  if task.delay == 0 then return 0 end
  local cap = task.max_delay > 0 and math.min(task.max_delay, retry.CEILING) or retry.CEILING
  local delay = math.min(task.delay * task.backoff ^ (failures - 1), cap)
  if task.jitter > 0 then
    delay = delay * (1 + task.jitter * (retry.crc32(seed) / 2147483648 - 1))
  end
  return math.floor(delay)
end
-- The life of a run and its tasks. Every change of run state goes through here, so that counters, sets, limits and the outbox
-- move together. A task's own flip from unsettled to settled guards every counter: what is said twice is counted once.
-- Work that would take long (fans, long chains of skips) stops at a budget and goes on through the inbox.
-- What happens to the hash, the ready set and the limits of a run, and to the lists that name runs, is noted first and written by
-- `write`, many in a command: whoever reads or writes them by himself calls it before.
local run = {}

-- A function outlives its call: every script begins with this. `owner`: the caller offers what becomes ready to the pools at once,
-- so it is written as `queued` already; until a pool has it, it stays in the ready set, and counts as ready.
function run.begin(prefix, inbox, now, owner)
  look_up()
  run.prefix, run.inbox, run.now, run.owner, run.budget = prefix, inbox, now, owner, 500
  run.dags, run.opened, run.limits, run.touched, run.woken, run.changed, run.moved = {}, {}, {}, {}, {}, {}, {}
  run.lists, run.over = {}, {}
  run.offers, run.ended, run.work, run.next_work, run.wanted = {}, {}, {}, 1, {}
end

-- ---------------------------------------------------------------- looking

function run.dag(id)
  local d = run.dags[id]
  if d ~= nil then return d end
  local v = call('HMGET', run.prefix .. 'dag:' .. id, 'version', 'team', 'paused', 'max_active_runs', 'max_active_tasks', 'generation', 'digest', 'deleted', 'slot')
  d = false
  if v[1] then
    local p = run.prefix
    d = { id = id, version = v[1], digest = v[7], deleted = v[8] and true or false, slot = v[9], team = v[2], paused = v[3] == '1', max_runs = tonumber(v[4]), max_tasks = tonumber(v[5]), generation = v[6],
      name = v[6] == '0' and id or (id .. '~' .. v[6]), places = {}, active_key = p .. 'active:' .. id, queue_key = p .. 'queue:' .. id }
  end
  run.dags[id] = d
  return d
end

function run.key(kind, dag, id)
  return run.prefix .. kind .. ':' .. dag .. ':' .. id
end

-- A run in memory. `values` is what its tasks' fields are known to hold, `dirty` which of them are to be written, `set` what else
-- is, `marks` what is to become of the members of its ready set. `payload` is what a worker has to know of the run: version, logical
-- date, kind, flags, digest of the definition (a DAG that was lost or deleted and made again begins with version 1 anew).
local function new(d, path, id, state, head, left, failed)
  local version, digest, kind, logical, created, flags = match(head, '^(%d+),(%w+),(%a+),(%-?%d*),(%d+),(%a*)$')
  local r = { dag = d, id = id, path = path, key = run.key('run', d.id, id), state = state, head = head,
    payload = version .. ',' .. logical .. ',' .. kind .. ',' .. flags .. ',' .. digest, created = tonumber(created), flags = flags, plan = plan.open(run.prefix, d.id, digest), left = tonumber(left), failed = tonumber(failed) or 0,
    counted = false, values = {}, dirty = {}, set = {}, marks = {} }
  run.opened[path] = r
  return r
end

function run.create(d, id, kind, logical, flags, left, nonce)
  local head = d.version .. ',' .. d.digest .. ',' .. kind .. ',' .. logical .. ',' .. format('%d', run.now) .. ',' .. flags
  local r = new(d, d.name .. '/' .. id, id, 'queued', head, left)
  r.set, run.changed[r] = { 'state', 'queued', 'head', head, 'left', left, 'nonce', nonce }, true
  return r
end

-- The run, or nil if it is gone, packed, or belongs to an earlier DAG of the same id.
function run.open(name, id)
  return run.at(name .. '/' .. id)
end

-- The DAG and id of a run by its path, `dag[~generation]/run`; nil if that DAG is of another generation.
local function named(path)
  local dag, generation, id = match(path, '^([^~/]+)~?(%d*)/(.+)$')
  local d = dag and run.dag(dag)
  if not d or generation ~= (d.generation == '0' and '' or d.generation) then return nil end
  return d, id
end

-- The run by its path.
function run.at(path)
  local r = run.opened[path]
  if r ~= nil then return r or nil end
  run.opened[path] = false
  local d, id = named(path)
  if not d then return nil end
  local names = run.wanted_fields(d, path)
  local v = call('HMGET', run.key('run', d.id, id), unpack(names))
  if not v[1] then return nil end
  r = new(d, path, id, v[1], v[2], v[3], v[4])
  if v[5] then r.cleared = v[5] end
  if v[6] then r.frozen = v[6] end
  for i = 7, #names do r.values[names[i]] = v[i] end
  return r
end

-- Reports about these tasks come next: their fields, and those of the tasks below them, are read with the run.
function run.want(path, index)
  local wanted = run.wanted[path]
  if not wanted then
    wanted = {}
    run.wanted[path] = wanted
  end
  wanted[#wanted + 1] = index
end

local HEAD, MOST = { 'state', 'head', 'left', 'failed', 'cleared', 'frozen' }, 100

-- The plan of most runs is that of the DAG's present version; if it is not, some fields are read one by one later.
function run.wanted_fields(d, path)
  local wanted = run.wanted[path]
  if not wanted then return HEAD end
  local names, p = { unpack(HEAD) }, plan.open(run.prefix, d.id, d.digest)
  for _, index in ipairs(wanted) do
    if #names > MOST then break end
    names[#names + 1] = index
    local edges = plan.edges(p, index) or {}
    for i = 1, #edges, 3 do names[#names + 1] = edges[i] end
  end
  return names
end

-- The logical date (ms), '' for none.
function run.logical(r)
  return match(r.head, '^%d+,%w+,%a+,(%-?%d*),')
end

-- Its place among the queued runs of its DAG: the logical date, or when it was created.
function run.order(r)
  local logical = run.logical(r)
  return logical ~= '' and logical or format('%d', r.created)
end

function run.ready_key(r)
  return run.key('ready', r.dag.id, r.id)
end

function run.is_backfill(r)
  return find(r.payload, ',backfill,', 1, true) ~= nil
end

-- A task's field, false for none.
function run.value(r, index)
  local value = r.values[index]
  if value == nil then
    value = call('HGET', r.key, index)
    r.values[index] = value
  end
  return value
end

-- A task's record; nil if it is in `none`.
function run.record(r, index)
  return record.decode(run.value(r, index))
end

-- The path of the run, index and attempt number (as text) that an attempt id names.
function run.parts(id)
  return match(id, '^([^/]+/[^/]+)/(%d+)/(%d+)$')
end

-- The run, index, record and attempt number that an attempt id names; the record is nil if the task is in `none`.
function run.attempt(id)
  local path, index, attempt = run.parts(id)
  local r = path and run.at(path)
  if not r then return nil end
  return r, index, run.record(r, index), tonumber(attempt)
end

-- ---------------------------------------------------------------- noting, writing

function run.note(r, field, value)
  local n = #r.set
  r.set[n + 1], r.set[n + 2] = field, value
  run.changed[r] = true
end

function run.set(r, index, value)
  r.values[index], r.dirty[index] = value, true
  run.changed[r] = true
end

function run.put(r, index, rec)
  run.set(r, index, record.encode(rec))
end

-- Members of a map go into a set (`true`) or out of it (`false`). Returns whether any went in.
local function move(map, key)
  local into, out
  for member, stays in pairs(map) do
    if stays then
      into = into or {}
      into[#into + 1] = member
    else
      out = out or {}
      out[#out + 1] = member
    end
  end
  if into then bulk('SADD', key, into) end
  if out then bulk('SREM', key, out) end
  return into ~= nil
end

-- A ready set has lost members: with none left, its run is not in the outbox.
local function look_at_outbox(key, path)
  if call('EXISTS', key) == 0 then call('ZREM', run.prefix .. 'outbox', path) end
end

local function write_run(r)
  if r.counted then
    run.note(r, 'left', format('%d', r.left))
    run.note(r, 'failed', format('%d', r.failed))
    r.counted = false
  end
  local set = r.set
  for index in pairs(r.dirty) do set[#set + 1], set[#set + 2] = index, r.values[index] end
  if #set > 0 then
    bulk('HSET', r.key, set)
    r.set, r.dirty = {}, {}
  end
  if not next(r.marks) then return end
  local key = run.ready_key(r)
  local some = move(r.marks, key)
  r.marks = {}
  if some then
    call('ZADD', run.prefix .. 'outbox', 'NX', run.now, r.path)
  else
    look_at_outbox(key, r.path)
  end
end

-- A list of the shard (a zset) has the member from now on, with this score, or has it no more (`false`).
function run.list(name, member, score)
  local list = run.lists[name]
  if not list then
    list = {}
    run.lists[name] = list
  end
  list[member] = score
end

local function write_lists()
  for name, list in pairs(run.lists) do
    local key, into, out = run.prefix .. name, {}, {}
    for member, score in pairs(list) do
      if score then into[#into + 1], into[#into + 2] = score, member else out[#out + 1] = member end
    end
    bulk('ZADD', key, into)
    bulk('ZREM', key, out)
    if name == 'recent' then call('ZREMRANGEBYRANK', key, 0, -1001) end -- for lists over all DAGs; each DAG's own list is whole
  end
  run.lists = {}
end

-- Runs that have ended have nothing ready.
local function write_over()
  local keys = {}
  for i, r in ipairs(run.over) do keys[i] = run.ready_key(r) end
  if #keys > 0 and call('DEL', unpack(keys)) > 0 then
    for _, r in ipairs(run.over) do call('ZREM', run.prefix .. 'outbox', r.path) end
  end
  run.over = {}
end

-- Everything that was noted since the last time.
function run.write()
  for r in pairs(run.changed) do write_run(r) end
  write_over()
  write_lists()
  for holder, key in pairs(run.moved) do -- limits and who is busy under them, DAGs and which runs are active
    move(holder.places, key)
    holder.places = {}
  end
  run.changed, run.moved = {}, {}
end

function run.since(r, ms)
  local since = ms - r.created
  return format('%d', since > 0 and since or 0)
end

-- The same of now.
local function since_now(r)
  local since = r.now or run.since(r, run.now)
  r.now = since
  return since
end

-- ---------------------------------------------------------------- ready: limits, outbox, offers

-- A member of a ready set: `<index>` of a first attempt (a set of integers is small), `<index>/<attempt>` of a later one.
local function member_of(index, attempt)
  return attempt == '1' and index or index .. '/' .. attempt
end

-- The attempts in the run's ready set: {index, attempt, member}, in the order of their tasks.
function run.offered(r)
  local found = {}
  for i, member in ipairs(call('SMEMBERS', run.ready_key(r))) do
    local index, attempt = match(member, '^(%d+)/?(%d*)$')
    found[i] = { index, attempt == '' and '1' or attempt, member }
  end
  table.sort(found, function(a, b) return tonumber(a[1]) < tonumber(b[1]) end)
  return found
end

-- An attempt comes into the run's ready set, or goes.
local function mark(r, index, attempt, stays)
  r.marks[member_of(index, attempt)] = stays
  run.changed[r] = true
end

-- A pool's entry to be (lib/pool.lua). `terms` is what it goes by: <slots>,<priority>,<group>,<weight>;<payload>. `fresh`: no pool
-- can have seen the attempt before.
function run.offer(r, index, attempt, fresh)
  local task = plan.task(r.plan, index)
  if not r.terms then
    local backfill = run.is_backfill(r)
    r.group, r.weight = backfill and r.dag.team .. '!backfill' or r.dag.team, backfill and '0.2' or '1'
    r.terms = r.group .. ',' .. r.weight .. ';' .. r.payload
  end
  run.offers[#run.offers + 1] = { id = r.path .. '/' .. index .. '/' .. attempt, pool = task.pool, terms = task.place .. r.terms,
    slots = task.slots, priority = task.priority, group = r.group, weight = r.weight, payload = r.payload, nonce = '', worker = '',
    since = r.created, fresh = fresh, r = r, index = index, attempt = attempt }
end

-- Its pool has it.
function run.has(offer)
  local r, member = offer.r, member_of(offer.index, offer.attempt)
  if r.marks[member] then r.marks[member] = nil else mark(r, offer.index, offer.attempt, false) end
end

-- The offers as scripts return them: {attempt id, pool, terms, its run's creation (ms), …}.
function run.offer_list()
  local list = {}
  for i, o in ipairs(run.offers) do
    list[4 * i - 3], list[4 * i - 2], list[4 * i - 1], list[4 * i] = o.id, o.pool, o.terms, format('%d', o.since)
  end
  return list
end

-- What is in its ready set is offered: what nobody has offered yet, or, if all offers are in doubt, everything once more.
function run.offer_ready(r, in_doubt)
  run.write()
  for _, one in ipairs(run.offered(r)) do
    local index, attempt = one[1], one[2]
    local value = run.value(r, index) or ''
    local state = match(value, '^([rq])' .. attempt .. ',')
    if not state then
      mark(r, index, attempt, false)
    elseif in_doubt then
      if state == 'q' then run.set(r, index, record.unqueue(value, attempt)) end
      run.offer(r, index, attempt)
    elseif state == 'r' then
      run.set(r, index, record.queue(value, attempt, since_now(r)))
      run.offer(r, index, attempt)
    end
  end
end

-- A limit on how many tasks are active at a time: who is (`busy`), and the ready ones beyond it in their order (`parked`).
-- Its occupancy is the cardinality of a set, so it can't leak.
function run.limit(d, name, max)
  local l = run.limits[name]
  if not l then
    l = { dag = d, name = name, max = max, places = {}, busy_key = run.prefix .. 'busy:' .. name, parked_key = run.prefix .. 'parked:' .. name }
    l.busy, l.parked = call('SCARD', l.busy_key), call('ZCARD', l.parked_key)
    run.limits[name] = l
  end
  return l
end

-- The limits that a task stands under: its DAG's, and its own, which counts per value of its concurrency key if it has one.
function run.limits_of(r, index)
  local d, task = r.dag, plan.task(r.plan, index)
  d.limits = d.limits or { run.limit(d, d.id, d.paused and 0 or d.max_tasks) }
  if task.max_active == 0 then return d.limits end
  local key = task.keyed and call('HGET', run.key('keys', d.id, r.id), index)
  return { d.limits[1], run.limit(d, d.id .. ':' .. (key and 'key:' .. key or index), task.max_active) }
end

local function place(l, member, stays)
  l.busy = l.busy + (stays and 1 or -1)
  l.places[member] = stays
  run.moved[l] = l.busy_key
end

-- A ready task takes its place under all of its limits and goes into its run's ready set, from which it is offered;
-- or it is parked at the first limit that is full, and holds no place meanwhile. `attempt` is text. `jump`: it was first in
-- line at that one. Returns whether it was offered.
function run.admit(r, index, attempt, jump, fresh)
  local limits, member = run.limits_of(r, index), r.id .. '/' .. index
  for _, l in ipairs(limits) do
    if l.busy >= l.max or (l.parked > 0 and l ~= jump) then
      -- Smaller goes first: priority, then the age of the run; both parts together stay below 2^53.
      local priority = tonumber(plan.task(r.plan, index).priority)
      call('ZADD', l.parked_key, (1000 - priority) * 4000000000000 + r.created, member)
      l.parked = l.parked + 1
      run.touched[l.name] = l
      return false
    end
  end
  for _, l in ipairs(limits) do place(l, member, true) end
  mark(r, index, attempt, true)
  if run.owner then run.offer(r, index, attempt, fresh) else run.woken[r.path] = true end
  return run.owner
end

function run.ready(r, index, rec)
  local since = since_now(r)
  if not rec and not r.cleared then return run.set(r, index, record.first(since, run.admit(r, index, '1', nil, true))) end
  local last = rec and rec.attempt or tonumber(call('HGET', run.key('tries', r.dag.id, r.id), 'last' .. index)) or 0
  local attempt = last + 1
  local offered = run.admit(r, index, format('%d', attempt), nil, true)
  run.put(r, index, { state = offered and 'q' or 'r', attempt = attempt, failures = rec and rec.failures or 0,
    losses = rec and rec.losses or 0, ready = since, queued = offered and since or '', started = '', ended = '', worker = '' })
end

-- The task stops occupying its limits, from whatever live state it was in. A parked one occupies none.
function run.leave(r, index, state, attempt)
  local limits, member, parked = run.limits_of(r, index), r.id .. '/' .. index, false
  if state == 'r' then
    mark(r, index, format('%d', attempt), false)
    for _, l in ipairs(limits) do
      if l.parked > 0 and call('ZREM', l.parked_key, member) == 1 then l.parked, parked = l.parked - 1, true end
    end
  end
  for _, l in ipairs(limits) do
    if not parked then place(l, member, false) end
    if l.parked > 0 then run.touched[l.name] = l end
  end
end

-- Parked tasks take the places that became free, in their order.
function run.unpark(l)
  while l.parked > 0 and l.busy < l.max do
    if run.budget <= 0 then return run.continue('unpark', l.name, '', l.max) end
    run.budget = run.budget - 1
    local member = call('ZPOPMIN', l.parked_key)[1]
    l.parked = l.parked - 1
    local id, index = match(member, '^([^/]+)/(%d+)$')
    local r = run.open(l.dag.name, id)
    local value = r and run.value(r, index)
    local attempt = value and match(value, '^r(%d+),')
    if attempt and run.admit(r, index, attempt, l) then run.set(r, index, record.queue(value, attempt, since_now(r))) end
  end
end

-- Pools have these attempts, offered when they became ready: the ready sets let go of them. Nothing else of their runs is touched.
function run.taken(ids)
  local members = {}
  for _, id in ipairs(ids) do
    local path, index, attempt = run.parts(id)
    local some, member = members[path], member_of(index, attempt)
    if some then some[#some + 1] = member else members[path] = { member } end
  end
  for path, some in pairs(members) do
    local d, id = named(path)
    if d then
      local key = run.key('ready', d.id, id)
      bulk('SREM', key, some)
      look_at_outbox(key, path)
    end
  end
end

-- What else became of an offer: `q` and the attempt id if the pool took what had been in doubt, `r` if it did not take what
-- counted as queued.
function run.answered(word)
  local letter, path, index, attempt = match(word, '^([qr])([^/]+/[^/]+)/(%d+)/(%d+)$')
  local r = run.at(path)
  if not r then return end
  local value = run.value(r, index) or ''
  if letter == 'r' then
    value = record.unqueue(value, attempt)
  else
    value = record.queue(value, attempt, since_now(r))
    mark(r, index, attempt, false)
  end
  if value then run.set(r, index, value) end
end

function run.running(r, index, rec, since, worker)
  if rec.state == 'r' then mark(r, index, format('%d', rec.attempt), false) end
  rec.state, rec.started, rec.worker = 'x', since, worker
  run.put(r, index, rec)
end

-- ---------------------------------------------------------------- settling

function run.continue(kind, id, outcome, offset)
  call('XADD', run.inbox, '*', 'kind', kind, 'id', id, 'outcome', outcome or '', 'ms', offset or 0)
end

function run.archive(r, index, rec, outcome, reason)
  call('HSET', run.key('tries', r.dag.id, r.id), index .. '.' .. format('%d', rec.attempt),
    outcome .. ',' .. rec.started .. ',' .. rec.ended .. ',' .. rec.worker .. ',' .. reason)
end

function run.settle(r, index, rec, letter)
  rec = rec or { attempt = 0, failures = 0, losses = 0, ready = '', queued = '', started = '', worker = '', ended = run.since(r, run.now) }
  rec.state = letter
  run.settled(r, index, record.encode(rec), letter)
end

-- Its field holds `value` from now on, which says how it ended.
function run.settled(r, index, value, letter)
  run.set(r, index, value)
  r.left, r.counted = r.left - 1, true
  if letter == 'f' and not plan.task(r.plan, index).allow_failure then r.failed = r.failed + 1 end
  if r.left <= 0 then return run.close(r) end
  run.work[#run.work + 1] = { r = r, index = index, letter = letter, position = 1 }
end

function run.close(r)
  run.end_as(r, r.failed > 0 and 'failed' or 'success')
end

function run.end_as(r, state)
  local d = r.dag
  if r.state == 'queued' then
    call('ZREM', d.queue_key, r.id)
    run.list('queued_runs', d.id .. '/' .. r.id, false)
  else
    run.activate(d, r.id, false)
    run.list('running_runs', d.id .. '/' .. r.id, false)
  end
  r.state, r.marks = state, {}
  run.note(r, 'state', state)
  run.note(r, 'ended', format('%d', run.now))
  run.over[#run.over + 1] = r
  run.list('ended', r.path, run.now)
  if run.is_backfill(r) then run.leave_backfill(r, state) end
  if state == 'success' then run.hook(r, 'success') elseif state == 'failed' then run.hook(r, 'failure') end
  local e = run.ended
  e[#e + 1] = d.id .. '/' .. r.id
  e[#e + 1] = state
  e[#e + 1] = format('%d', run.now - (tonumber(call('HGET', r.key, 'started')) or run.now))
  run.start_next(d)
end

-- What the DAG wants to be told is put into an outbox in the same step; the owner delivers it, at least once.
function run.hook(r, event)
  if find(plan.head(r.plan).hooks, event, 1, true) then
    call('ZADD', run.prefix .. 'hooks', run.now, r.path .. '/' .. event .. '/' .. format('%d', run.now))
  end
end

-- A run of a backfill makes room for its next one.
function run.leave_backfill(r, state)
  local id = call('HGET', r.key, 'backfill')
  if not id then return end
  local key = run.key('backfill', r.dag.id, id)
  if call('SREM', run.key('backfill_runs', r.dag.id, id), r.id) == 0 then return end
  call('HINCRBY', key, state, 1)
  if call('HGET', key, 'state') == 'running' then call('ZADD', run.prefix .. 'backfill_look', 0, r.dag.id .. '/' .. id) end
end

-- One downstream task hears that an upstream settled.
local function tell(r, child, n, rule, letter)
  local value = run.value(r, child)
  if record.decided(value) then return end
  local counters, verdict = (value or 0) + record.CLASS[letter], nil
  if rule == 'a' and counters < record.FAILED then -- the commonest: all have succeeded so far
    verdict = counters == n and 'r'
  else
    verdict = rules.decide[rule](n, record.counts(counters))
  end
  if verdict == 'r' then
    run.ready(r, child)
  elseif verdict then
    run.settle(r, child, nil, verdict)
  else
    run.set(r, child, format('%d', counters))
  end
end

-- A task that its upstream did not choose is skipped directly, unless it has been decided.
local function skip(r, child)
  if not run.record(r, child) then run.settle(r, child, nil, 'k') end
end

local NOTHING = {}

-- What was not chosen among the direct downstream.
local function skipped_by_choice(item)
  if item.letter ~= 's' or not find(item.r.flags, 'b', 1, true) then return NOTHING end
  local set = {}
  local list = call('HGET', run.key('tries', item.r.dag.id, item.r.id), 'branch' .. item.index)
  for child in string.gmatch(list or '', '%d+') do set[child] = true end
  return set
end

-- All of its downstream hears that the task has settled. False if there is too much of it for that.
local function spread_whole(item, chosen_not)
  local r, edges = item.r, item.position == 1 and plan.edges(item.r.plan, item.index)
  if not edges or #edges / 3 > run.budget then return false end
  for i = 1, #edges, 3 do
    if r.state ~= 'running' then return true end
    run.budget = run.budget - 1
    if chosen_not[edges[i]] then skip(r, edges[i]) else tell(r, edges[i], edges[i + 1], edges[i + 2], item.letter) end
  end
  return true
end

-- What follows from everything that has settled in this call, as far as the budget goes.
function run.spread()
  while run.next_work <= #run.work do
    local item = run.work[run.next_work]
    local r = item.r
    local chosen_not = r.state == 'running' and skipped_by_choice(item)
    if chosen_not and not spread_whole(item, chosen_not) then
      local downstream = plan.downstream(r.plan, item.index)
      local child, n, rule, position = plan.child(downstream, item.position)
      while child and r.state == 'running' do
        if run.budget <= 0 then return run.put_back() end
        run.budget = run.budget - 1
        if chosen_not[child] then skip(r, child) else tell(r, child, tonumber(n), rule, item.letter) end
        item.position = position
        child, n, rule, position = plan.child(downstream, position)
      end
    end
    run.next_work = run.next_work + 1
  end
end

function run.put_back()
  for i = run.next_work, #run.work do
    local item = run.work[i]
    run.continue('spread', item.r.path .. '/' .. item.index .. '/0', item.letter, item.position)
    call('HINCRBY', item.r.key, 'pending', 1)
  end
  run.next_work = #run.work + 1
end

-- The attempt ended without success: retry within the budget of the task, else fail.
function run.fail(r, index, rec, reason, final, retry_ms)
  local task = plan.task(r.plan, index)
  run.leave(r, index, rec.state, rec.attempt)
  rec.failures, rec.losses = rec.failures + 1, 0
  run.archive(r, index, rec, 'failed', reason)
  if final or rec.failures > task.retries then return run.settle(r, index, rec, 'f') end
  local delay = retry_ms and math.min(retry_ms, retry.CEILING) or retry.delay_ms(task, rec.failures, r.id .. '/' .. index .. '/' .. format('%d', rec.attempt))
  if delay <= 0 then return run.ready(r, index, rec) end
  rec.state = 'w'
  run.put(r, index, rec)
  call('ZADD', run.prefix .. 'timers', run.now + delay, 'retry/' .. r.path .. '/' .. index .. '/' .. format('%d', rec.attempt))
end

-- Whoever held the attempt at its pool is to be told; the owner passes it on and takes it off this set.
function run.stop(r, index, attempt)
  call('SADD', run.prefix .. 'stops', plan.task(r.plan, index).pool .. '/' .. r.path .. '/' .. index .. '/' .. format('%d', attempt))
  run.woken[r.path] = true
end

-- ---------------------------------------------------------------- runs

function run.roots(r, offset)
  local at = 0
  for index in string.gmatch(plan.head(r.plan).roots, '%d+') do
    at = at + 1
    if at > offset then
      if run.budget <= 0 then return run.continue('roots', r.path, '', at - 1) end
      run.budget = run.budget - 1
      run.ready(r, index)
    end
  end
end

-- `fresh`: it was created in this call, and waited nowhere.
function run.start(r, fresh)
  r.state = 'running'
  run.note(r, 'state', 'running')
  run.note(r, 'started', format('%d', run.now))
  run.activate(r.dag, r.id, true)
  if not fresh then run.list('queued_runs', r.dag.id .. '/' .. r.id, false) end
  run.list('running_runs', r.dag.id .. '/' .. r.id, run.now)
  local timeout = plan.head(r.plan).run_timeout
  if timeout > 0 then call('ZADD', run.prefix .. 'timers', run.now + timeout, 'expire/' .. r.path) end
  if r.cleared and call('HEXISTS', r.key, 'reopen') == 1 then run.reopen(r) else run.roots(r, 0) end
end

-- A run that was cleared goes on with the tasks that are listed in `reopen`.
function run.reopen(r)
  local rest = {}
  for index in string.gmatch(call('HGET', r.key, 'reopen') or '', '%d+') do
    if run.budget > 0 then
      run.budget = run.budget - 1
      run.ready(r, index)
    else
      rest[#rest + 1] = index
    end
  end
  call('HDEL', r.key, 'reopen')
  if #rest > 0 then
    call('HSET', r.key, 'reopen', table.concat(rest, ','))
    call('HINCRBY', r.key, 'pending', 1)
    run.continue('reopen', r.path)
  end
end

-- How many runs of the DAG are running.
function run.active(d)
  if not d.active then d.active = call('SCARD', d.active_key) end
  return d.active
end

function run.activate(d, id, stays)
  d.active = run.active(d) + (stays and 1 or -1)
  d.places[id], run.moved[d] = stays, d.active_key
end

function run.room(d)
  return not d.paused and run.active(d) < d.max_runs
end

-- The run waits for its turn, which may be now.
function run.enqueue(r)
  local d = r.dag
  run.list('queued_runs', d.id .. '/' .. r.id, r.created)
  call('ZADD', d.queue_key, run.order(r), r.id)
  run.start_next(d)
end

-- Queued runs of a DAG start in the order of their logical dates, as far as its limit allows.
function run.start_next(d)
  while run.room(d) do
    if run.budget <= 0 then return call('ZCARD', d.queue_key) > 0 and run.continue('limits', d.id) end
    local ids, gone = call('ZRANGE', d.queue_key, 0, math.min(run.budget, d.max_runs - run.active(d), 50) - 1), {}
    if #ids == 0 then return end
    for i, id in ipairs(ids) do
      local r = run.open(d.name, id)
      if r and r.frozen then break end -- when its edit is done, this is tried again
      gone[i] = id
    end
    bulk('ZREM', d.queue_key, gone)
    for _, id in ipairs(gone) do
      run.budget = run.budget - 1
      local r = run.open(d.name, id)
      if r and r.state == 'queued' then run.start(r) end
    end
    if #gone < #ids then return end
  end
end

-- What follows is done, freed places are taken.
function run.follow()
  run.spread()
  repeat
    local name, l = next(run.touched)
    if name then
      run.touched[name] = nil
      run.unpark(l)
    end
  until not name
end

-- Every script that includes this ends with it, or with its two halves.
function run.finish()
  run.follow()
  run.write()
end

-- For scripts that the owner does not call: it sleeps on its inbox, and hears there which runs have something ready or to be
-- stopped, and which have ended.
function run.wake()
  for id in pairs(run.woken) do run.continue('wake', id) end
  for i = 1, #run.ended, 3 do run.continue('ended', run.ended[i], run.ended[i + 1], run.ended[i + 2]) end
end
-- A run comes into being, once for each id and once for each logical date.
local create = {}

-- {CREATED | EXISTS, state, run id}. CREATED again for the nonce that made it.
function create.run(d, run_id, kind, logical, params, nonce, keys)
  local dag, prefix = d.id, run.prefix
  local index_key, dates_key, key = prefix .. 'runs:' .. dag, prefix .. 'dates:' .. dag, run.key('run', dag, run_id)
  if redis.call('ZSCORE', index_key, run_id) then
    local known = redis.call('HMGET', key, 'nonce', 'state')
    return { known[1] == nonce and 'CREATED' or 'EXISTS', known[2] or 'ended', run_id }
  end
  if logical ~= '' then
    local taken = redis.call('ZRANGEBYSCORE', dates_key, logical, logical, 'LIMIT', 0, 1)[1]
    if taken then return { 'EXISTS', redis.call('HGET', run.key('run', dag, taken), 'state') or 'ended', taken } end
  end
  local now, head = string.format('%d', run.now), plan.head(plan.open(prefix, dag, d.digest))
  local r = run.create(d, run_id, kind, logical, params ~= '' and 'p' or '', head.n, nonce)
  -- A backfill is late by its nature.
  if head.deadline and kind ~= 'backfill' then
    redis.call('ZADD', prefix .. 'timers', (tonumber(logical) or run.now) + head.deadline, 'deadline/' .. r.path)
  end
  redis.call('ZADD', index_key, now, run_id)
  run.list('recent', dag .. '/' .. run_id, run.now)
  if logical ~= '' then redis.call('ZADD', dates_key, logical, run_id) end
  if params ~= '' then redis.call('SET', run.key('params', dag, run_id), params) end
  if keys ~= '' then
    for index, value in pairs(cjson.decode(keys)) do redis.call('HSET', run.key('keys', dag, run_id), index, value) end
  end
  if redis.call('EXISTS', d.queue_key) == 0 and run.room(d) then
    run.start(r, true)
  else
    run.enqueue(r)
  end
  run.spread()
  return { 'CREATED', r.state, run_id }
end
-- A pool: who waits, who holds slots, and the one door through which work gets onto its stream.
-- entries: attempt id -> <state>,<nonce>,<worker>,<terms>; terms, as its shard offered it: <slots>,<priority>,<group>,<weight>;<payload>
--   W waits in its group, since the time that stands for its nonce · Q on the stream · R granted to a worker
--   S granted, but no longer wanted
-- held: one member a slot that is taken (`id`, `id#2`, …): its cardinality is the occupancy, so none can leak.
-- Fair share between groups is start-time fair queueing; inside a group priority goes first, then the run's age, then the task's:
-- runs that have begun are finished first.
-- What `hold`, `wait` and `drop` change is written by `save`, many in a command: whoever calls them ends with it.
local pool = { GROUP = 'workers', KEEP_DONE = 20000, LOOK = 8 }

local ENTRY, TERMS = '^(%a),([^,]*),([^,]*),(.*)$', '^(%d+),(%-?%d+),([^,]*),([^;]*);(.*)$'

-- What is to be written: nothing yet.
local function nothing()
  return { set = {}, hold = {}, del = {}, free = {}, unlease = {}, done = {}, wait = {} }
end

-- A function outlives its call: every script begins with this.
function pool.begin(prefix, now)
  look_up()
  pool.prefix, pool.now, pool.dirty = prefix, now, false
  pool.meta, pool.entries, pool.held_key = prefix .. 'meta', prefix .. 'entries', prefix .. 'held'
  pool.lease, pool.stream, pool.groups = prefix .. 'lease', prefix .. 'stream', prefix .. 'groups'
  pool.done, pool.done_before = prefix .. 'done', prefix .. 'done_before'
  pool.shares, pool.dropped, pool.known, pool.seen = {}, {}, {}, nil
  pool.writes = nothing()
end

local function decode(id, text)
  if not text then return nil end
  local state, nonce, worker, terms = match(text, ENTRY)
  return pool.entry(id, terms, state, nonce, worker)
end

function pool.entry(id, terms, state, nonce, worker)
  local slots, priority, group, weight, payload = match(terms, TERMS)
  return { id = id, state = state, slots = tonumber(slots), priority = priority, group = group, weight = weight,
    nonce = nonce, worker = worker, payload = payload, terms = terms }
end

local function encode(e)
  return e.state .. ',' .. e.nonce .. ',' .. e.worker .. ',' .. e.terms
end

function pool.get(id)
  if pool.dropped[id] then return nil end
  return decode(id, call('HGET', pool.entries, id))
end

-- Those of these ids that are granted under this nonce, with what `drop` wants to know of them.
function pool.granted(ids, nonce)
  local found = {}
  for i, text in ipairs(call('HMGET', pool.entries, unpack(ids))) do
    local state, holder, slots = match(text or '', '^([RS]),([^,]*),[^,]*,(%d+),')
    if holder == nonce then found[#found + 1] = { id = ids[i], state = state, slots = tonumber(slots) } end
  end
  return found
end

-- Hints become grants, from text to text: of each id G (granted now, or before under this nonce), or N.
function pool.grant(ids, nonce, worker)
  local set, answer = pool.writes.set, {}
  for i, text in ipairs(call('HMGET', pool.entries, unpack(ids))) do
    local state, holder, terms = match(text or '', '^(%a),([^,]*),[^,]*,(.*)$')
    if state == 'Q' then
      set[#set + 1], set[#set + 2] = ids[i], 'R,' .. nonce .. ',' .. worker .. ',' .. terms
      answer[i] = 'G'
    else
      answer[i] = state == 'R' and holder == nonce and 'G' or 'N'
    end
  end
  return answer
end

function pool.put(e)
  call('HSET', pool.entries, e.id, encode(e))
end

-- As `put`, but written by `save`.
function pool.set(e)
  local set = pool.writes.set
  local n = #set
  set[n + 1], set[n + 2] = e.id, encode(e)
end

-- Whether there is such a pool. `caller`: whose fence is looked at next.
function pool.open(caller)
  local v = call('HMGET', pool.meta, 'slots', 'v', 'passed', 'horizon', 'fence:' .. (caller or ''))
  if not v[1] then return false end
  pool.slots, pool.v = tonumber(v[1]), tonumber(v[2]) or 0
  pool.passed, pool.horizon, pool.seen = tonumber(v[3]) or 0, tonumber(v[4]) or 0, caller and (v[5] or '0')
  pool.used = call('SCARD', pool.held_key)
  pool.busy_groups = call('ZCARD', pool.groups)
  return true
end

-- Everything that was noted since the last time.
function pool.write()
  local w = pool.writes
  bulk('HDEL', pool.entries, w.del)
  bulk('SREM', pool.held_key, w.free)
  bulk('ZREM', pool.lease, w.unlease)
  bulk('SADD', pool.done, w.done)
  bulk('HSET', pool.entries, w.set)
  bulk('SADD', pool.held_key, w.hold)
  for group, items in pairs(w.wait) do bulk('ZADD', pool.prefix .. 'wait:' .. group, items) end
  pool.writes = nothing()
end

-- What each group was given, a minute at a time, is kept for a quarter of an hour: `pool show` prints the shares.
function pool.save()
  pool.write()
  if pool.dirty then
    call('HSET', pool.meta, 'v', format('%.6f', pool.v), 'passed', format('%d', pool.passed))
  end
  local minute = pool.prefix .. 'shares:' .. format('%d', math.floor(pool.now / 60000))
  local new = false
  for group, slots in pairs(pool.shares) do new = call('HINCRBY', minute, group, slots) == slots or new end
  if new then call('EXPIRE', minute, 900) end
end

-- The only place that puts work on a stream, so that waking a worker can't be forgotten.
function pool.push(e)
  call('XADD', pool.stream, '*', 'id', e.id, 'payload', e.payload)
end

local function place(id, slot)
  return slot == 1 and id or id .. '#' .. format('%d', slot)
end

function pool.hold(e)
  local hold = pool.writes.hold
  for slot = 1, e.slots do hold[#hold + 1] = place(e.id, slot) end
  pool.used = pool.used + e.slots
  pool.shares[e.group] = (pool.shares[e.group] or 0) + e.slots
  e.state, e.nonce = 'Q', ''
  pool.set(e)
  pool.push(e)
end

-- `since`: when its run was created.
function pool.wait(e, since)
  e.state, e.nonce = 'W', format('%d', pool.now)
  pool.set(e)
  local items = pool.writes.wait[e.group]
  if not items then
    items = {}
    pool.writes.wait[e.group] = items
  end
  -- Smaller goes first; both parts together stay below 2^53.
  items[#items + 1] = (1000 - e.priority) * 4000000000000 + since
  items[#items + 1] = e.id
  if not pool.known[e.group] then
    pool.known[e.group] = true
    if not call('ZSCORE', pool.groups, e.group) then
      local tag = tonumber(call('ZSCORE', pool.prefix .. 'tags', e.group) or 0)
      call('ZADD', pool.groups, format('%.6f', math.max(pool.v, tag)), e.group)
      pool.busy_groups = pool.busy_groups + 1
    end
  end
end

-- Offers that came: of each T (taken now, or known before), W (wider than the pool) or B (behind: it may have come and gone).
function pool.take(offers, cursor_ms)
  local ids, known, answer = {}, {}, {}
  for _, e in ipairs(offers) do
    if not e.fresh then ids[#ids + 1] = e.id end
  end
  if #ids > 0 then
    local here, gone = call('HMGET', pool.entries, unpack(ids)), pool.gone(ids)
    for i, id in ipairs(ids) do known[id] = here[i] or gone[i] end
  end
  for i, e in ipairs(offers) do
    if known[e.id] then
      answer[i] = 'T'
    elseif e.slots > pool.slots and pool.slots > 0 then
      answer[i] = 'W'
    elseif cursor_ms <= pool.horizon then
      answer[i] = 'B'
    else
      answer[i], known[e.id] = 'T', true
      if pool.busy_groups == 0 and pool.used + e.slots <= pool.slots then pool.hold(e) else pool.wait(e, e.since) end
    end
  end
  if pool.busy_groups > 0 then pool.admit(#answer) end
  pool.save()
  return answer
end

-- ---------------------------------------------------------------- who goes next

-- The group has this virtual time now; one in which nobody waits is remembered only as long as it is ahead: an idle group
-- saves no credit, and leaving is no way to lose a debt.
local function after(group, tag)
  if call('EXISTS', pool.prefix .. 'wait:' .. group) == 1 then
    return call('ZADD', pool.groups, format('%.6f', tag), group)
  end
  pool.busy_groups = pool.busy_groups - call('ZREM', pool.groups, group)
  pool.known[group] = nil
  call('ZREMRANGEBYSCORE', pool.prefix .. 'tags', '-inf', format('%.6f', pool.v))
  call('ZADD', pool.prefix .. 'tags', format('%.6f', tag), group)
end

-- The first of a group that has not been given out, and its entry; read `count` at a time.
local function head(g, count)
  if g.at > #g.ids then
    g.ids, g.at = call('ZRANGE', pool.prefix .. 'wait:' .. g.name, #g.gone, #g.gone + count - 1), 1
    if #g.ids == 0 then return nil end
    g.texts = call('HMGET', pool.entries, unpack(g.ids))
  end
  local id = g.ids[g.at]
  return id, decode(id, g.texts[g.at])
end

local function before(a, b)
  return a.tag < b.tag or (a.tag == b.tag and a.name < b.name)
end

-- Put back the first of a sorted list, whose time has moved on.
local function resort(groups)
  local g = table.remove(groups, 1)
  local low, high = 1, #groups + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if before(groups[middle], g) then low = middle + 1 else high = middle end
  end
  table.insert(groups, low, g)
end

-- Heads of groups in turn, as long as each fits. Returns how many were given slots, and whether more may be.
local function admit_heads(limit)
  local look, groups = math.max(pool.LOOK, math.min(limit, 100)), {}
  local list = call('ZRANGE', pool.groups, 0, look, 'WITHSCORES')
  for i = 1, #list, 2 do groups[#groups + 1] = { name = list[i], tag = tonumber(list[i + 1]), gone = {}, ids = {}, at = 1 } end
  local beyond = #groups > look and table.remove(groups) or nil
  local given, more, touched = 0, true, {}
  while given < limit and pool.used < pool.slots and groups[1] do
    local first = groups[1]
    if beyond and before(beyond, first) then break end
    local id, e = head(first, math.min(1000, math.ceil((limit - given) / #groups)))
    touched[first] = true
    if not id then
      table.remove(groups, 1)
    elseif e and e.slots > pool.slots - pool.used then
      more = false
      break
    else
      first.at, first.gone[#first.gone + 1] = first.at + 1, id
      pool.v, pool.dirty = math.max(pool.v, first.tag), true
      if e then
        first.tag, pool.passed = first.tag + e.slots / tonumber(e.weight), 0
        pool.hold(e)
      end
      given = given + 1
      if groups[2] then resort(groups) end
    end
  end
  for g in pairs(touched) do
    bulk('ZREM', pool.prefix .. 'wait:' .. g.name, g.gone)
    after(g.name, g.tag)
  end
  return given, more
end

-- The first in line is too wide for what is free: the next that fits may go before it, until as many slots as the pool has
-- were given past it: then it is waited for. Returns its group, the group's virtual time, its id and its entry.
local function next_that_fits()
  local free, first = pool.slots - pool.used, true
  local groups = call('ZRANGE', pool.groups, 0, pool.LOOK - 1, 'WITHSCORES')
  for g = 1, #groups, 2 do
    for _, id in ipairs(call('ZRANGE', pool.prefix .. 'wait:' .. groups[g], 0, first and 0 or pool.LOOK - 1)) do
      local e = pool.get(id)
      if not e or e.slots <= free then
        if not first then pool.passed = pool.passed + (e and e.slots or 0) end
        if first and e then pool.passed = 0 end
        return groups[g], tonumber(groups[g + 1]), id, e
      end
      -- One that is wider than the whole pool waits for a person, and holds nobody up.
      if first and e.slots <= pool.slots and pool.passed >= pool.slots then return nil end
      first = false
    end
  end
end

local function admit_past()
  local group, tag, id, e = next_that_fits()
  if not group then return false end
  call('ZREM', pool.prefix .. 'wait:' .. group, id)
  pool.v, pool.dirty = math.max(pool.v, tag), true
  if e then
    tag = tag + e.slots / tonumber(e.weight)
    pool.hold(e)
  end
  after(group, tag)
  return true
end

-- Give free slots to those who wait: the group with the smallest virtual time first. Returns 1 if `limit` stopped it.
function pool.admit(limit)
  pool.write()
  while limit > 0 do
    if pool.busy_groups == 0 or pool.used >= pool.slots then return 0 end
    local given, more = admit_heads(limit)
    limit = limit - given
    if not more then
      pool.write()
      if not admit_past() then return 0 end
      limit = limit - 1
    end
  end
  return 1
end

-- The entry leaves the pool, and is remembered for a while: an offer of it that comes late is a no-op.
function pool.drop(e)
  if pool.dropped[e.id] then return end
  pool.dropped[e.id] = true
  local w = pool.writes
  w.del[#w.del + 1] = e.id
  if e.state == 'W' then
    local key = pool.prefix .. 'wait:' .. e.group
    call('ZREM', key, e.id)
    if call('EXISTS', key) == 0 then
      pool.busy_groups = pool.busy_groups - call('ZREM', pool.groups, e.group)
      pool.known[e.group] = nil
    end
  else
    for slot = 1, e.slots do w.free[#w.free + 1] = place(e.id, slot) end
    pool.used = pool.used - e.slots
    w.unlease[#w.unlease + 1] = e.id
  end
  w.done[#w.done + 1] = e.id
end

-- Those of these ids that left lately: true by their places in the list.
function pool.gone(ids)
  if #ids == 0 then return ids end
  local gone = call('SMISMEMBER', pool.done, unpack(ids))
  local before = call('SMISMEMBER', pool.done_before, unpack(ids))
  for i = 1, #ids do gone[i] = gone[i] + before[i] > 0 end
  return gone
end

-- Who left lately is kept in two sets, the older of which goes as a whole; the horizon is when its last one had come.
function pool.trim_done()
  if call('SCARD', pool.done) < pool.KEEP_DONE then return end
  local turned = call('HGET', pool.meta, 'turned')
  if turned then call('HSET', pool.meta, 'horizon', turned) end
  call('HSET', pool.meta, 'turned', pool.now)
  call('UNLINK', pool.done_before)
  call('RENAME', pool.done, pool.done_before)
end

-- The refusal for callers with an outdated token: a pool remembers the highest fence it has seen from each.
function pool.refused(name, fence)
  local seen = tonumber(pool.seen or call('HGET', pool.meta, 'fence:' .. name) or '0')
  if tonumber(fence) < seen then
    return redis.error_reply('FENCED ' .. name .. ' shows fence ' .. fence .. ', this pool has seen ' .. format('%d', seen))
  end
  if tonumber(fence) > seen then call('HSET', pool.meta, 'fence:' .. name, fence) end
end
-- What became ready goes over to its pool in the same step, where both cells lie on one server: then nothing of it is in between.
-- What is not handed over here (on a cluster; if the pool is missing, too small, or has seen a higher fence) stays an offer.
local hand = {}

-- Keys from the `first` one on are prefixes of pools. Called before `run.write`.
function hand.over(keys, first, token)
  if #run.offers == 0 or not keys[first] then return end
  local shard, fence = 'shard' .. match(run.prefix, ':s:(%d+)}:$'), match(token, ':(%d+)$')
  local lines, left = {}, {}
  for i = first, #keys do lines[match(keys[i], ':p:(.+)}:$')] = { prefix = keys[i] } end
  for _, offer in ipairs(run.offers) do
    local line = lines[offer.pool] or left
    line[#line + 1] = offer
  end
  for _, line in pairs(lines) do
    local answer = {}
    if #line > 0 then
      pool.begin(line.prefix, run.now)
      if pool.open(shard) and not pool.refused(shard, fence) then answer = pool.take(line, run.now + 1) end
    end
    for i, offer in ipairs(line) do
      if answer[i] == 'T' then run.has(offer) else left[#left + 1] = offer end
    end
  end
  run.offers = left
end
local owner = KEYS[1]
local meta = KEYS[2]
local inbox = KEYS[3]
local prefix = KEYS[4]
local token = ARGV[1]
local dag = ARGV[2]
local id = ARGV[3]
local expected = ARGV[4]
local cursor = ARGV[5]
local look = ARGV[6]
-- backfill_step: the next runs of a backfill, and its cursor in the same step.
-- cell: shard
-- keys: owner meta inbox prefix ...
-- The rest of keys: prefixes of pools on the same server (lib/hand.lua).
-- args: token dag id expected cursor look ...
-- expected: the cursor that this was planned from; cursor: where it goes on (ms), '' when all dates are dealt with; look: when to
-- look again (ms). The rest, two a date: logical date (ms), run id.
-- returns: {OK | CHANGED, offers, dates that had a run already: {ms, run id, its state, …}}
-- errors: FENCED
-- cost: O(runs and their roots)
local refused = lease.refused(owner, meta, token)
if refused then return refused end
run.begin(prefix, inbox, clock.now(), true)
local key, runs = prefix .. 'backfill:' .. dag .. ':' .. id, prefix .. 'backfill_runs:' .. dag .. ':' .. id
local v = redis.call('HMGET', key, 'state', 'cursor', 'params', 'keys')
local d = run.dag(dag)
if not d or d.deleted or v[1] ~= 'running' or (v[2] or '') ~= expected then return { 'CHANGED', {}, {} } end
local existing, made, skipped = {}, 0, 0
for i = 7, #ARGV, 2 do
  local answer = create.run(d, ARGV[i + 1], 'backfill', ARGV[i], v[3] or '', 'backfill ' .. id, v[4] or '')
  if answer[1] == 'CREATED' then
    redis.call('SADD', runs, answer[3])
    redis.call('HSET', run.key('run', dag, answer[3]), 'backfill', id)
    made = made + 1
  else
    existing[#existing + 1], existing[#existing + 2], existing[#existing + 3] = ARGV[i], answer[3], answer[2]
    skipped = skipped + 1
  end
end
if made > 0 then redis.call('HINCRBY', key, 'made', made) end
if skipped > 0 then redis.call('HINCRBY', key, 'existing', skipped) end
redis.call('HSET', key, 'cursor', cursor)
if cursor == '' and redis.call('SCARD', runs) == 0 then
  redis.call('HSET', key, 'state', 'done', 'ended', run.now)
  redis.call('ZREM', prefix .. 'backfill_look', dag .. '/' .. id)
else
  redis.call('ZADD', prefix .. 'backfill_look', look, dag .. '/' .. id)
end
run.follow()
hand.over(KEYS, 5, token)
run.write()
return { 'OK', run.offer_list(), existing }
