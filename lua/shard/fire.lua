-- fire: due slots become runs, or records of why not; the index moves in this same step, so no slot is done twice or lost.
-- cell: shard
-- keys: owner meta inbox prefix ...
-- The rest of keys: prefixes of pools on the same server (lib/hand.lua).
-- args: token ...
-- The rest, six a DAG: id, the slot expected next (ms), the one after these ('' for none), when to look again (ms or ''), overlap
-- (queue | skip | cancel_running), actions: `run:<ms>:<run id>` and `skip:<ms>:<reason>` joined by '|'.
-- returns: {runs created, offers, ended, next look (ms) or 0}
-- errors: FENCED
-- cost: O(actions and the roots of the runs they make)
-- include: lib/clock.lua
-- include: lib/lease.lua
-- include: lib/create.lua
-- include: lib/hand.lua
-- include: lib/cancel.lua
local refused = lease.refused(owner, meta, token)
if refused then return refused end
run.begin(prefix, inbox, clock.now(), true)
local QUEUE = 100
local created = 0

local function note_skip(d, ms, reason)
  local key = prefix .. 'skips:' .. d.id
  redis.call('ZADD', key, ms, ms .. ':' .. reason)
  redis.call('ZREMRANGEBYRANK', key, 0, -1001)
end

local function fire(d, ms, run_id, overlap)
  if overlap == 'skip' and run.active(d) + redis.call('ZCARD', d.queue_key) > 0 then
    return note_skip(d, ms, 'an earlier run was active (overlap: skip)')
  end
  if overlap == 'cancel_running' then
    run.write()
    for _, id in ipairs(redis.call('SMEMBERS', d.active_key)) do
      local r = run.open(d.name, id)
      if r and r.state == 'running' and not r.frozen then cancel.run(r, 'cancelled') end
    end
  elseif redis.call('ZCARD', d.queue_key) >= QUEUE then
    return note_skip(d, ms, QUEUE .. ' runs were queued already')
  end
  local answer = create.run(d, run_id, 'scheduled', ms, '', 'slot', '')
  if answer[1] == 'EXISTS' then return note_skip(d, ms, 'its date had run ' .. answer[3] .. ' already') end
  created = created + 1
end

for i = 2, #ARGV, 6 do
  local dag, expected, following, look, overlap, actions = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]
  local d = run.dag(dag)
  if d and not d.deleted and not d.paused and d.slot == expected then
    for kind, ms, text in string.gmatch(actions, '(%a+):(%-?%d+):([^|]*)') do
      if kind == 'run' then fire(d, ms, text, overlap) else note_skip(d, ms, text) end
    end
    if following == '' then
      redis.call('HDEL', prefix .. 'dag:' .. dag, 'slot')
      run.list('slots', dag, false)
    else
      redis.call('HSET', prefix .. 'dag:' .. dag, 'slot', following)
      run.list('slots', dag, look)
    end
  end
end
run.follow()
hand.over(KEYS, 5, token)
run.write()
local first = redis.call('ZRANGE', prefix .. 'slots', 0, 0, 'WITHSCORES')
return { created, run.offer_list(), run.ended, first[2] or '0' }
