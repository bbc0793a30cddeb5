-- edit_run: clear or mark tasks of a run, as planned by redsched/edit.py from what the run was a moment ago.
-- cell: shard
-- keys: prefix inbox
-- args: dag run_id seen nonce ...
-- seen: `state/left/edits` of the run when the plan was made; if it has changed since, nothing happens.
-- The rest, two a task: index, and what it becomes (lib/edit.lua); none: the list staged under `edit:<dag>:<run>:<nonce>`
-- is taken; the run is frozen and its owner carries it out in slices.
-- returns: {OK, new run state, attempts to be stopped} | {STAGED} | {CHANGED, seen now} | {PACKED}
-- errors: NOTFOUND, RESHARDED
-- cost: O(tasks named), at most 500
-- include: lib/clock.lua
-- include: lib/edit.lua
-- include: lib/shut.lua
local closed = shut.refused(prefix)
if closed then return closed end
run.begin(prefix, inbox, clock.now())
local d = run.dag(dag)
local r = d and run.open(d.name, run_id)
if not r then
  if redis.call('HEXISTS', prefix .. 'packed:' .. dag, run_id) == 1 then return { 'PACKED' } end
  return redis.error_reply('NOTFOUND run ' .. run_id .. ' of DAG ' .. dag)
end
local v = redis.call('HMGET', r.key, 'left', 'edits', 'pending', 'edited')
if v[4] == nonce then return { r.frozen and 'STAGED' or 'OK', r.state, 0 } end
local now_seen = r.state .. '/' .. v[1] .. '/' .. (v[2] or '0')
if now_seen ~= seen or tonumber(v[3] or '0') > 0 or r.frozen then return { 'CHANGED', now_seen } end
redis.call('HINCRBY', r.key, 'edits', 1)
redis.call('HSET', r.key, 'edited', nonce)
if #ARGV == 4 then
  local staged, key = run.key('edit', dag, run_id) .. ':' .. nonce, run.key('edit', dag, run_id)
  redis.call('PERSIST', staged)
  redis.call('RENAME', staged, key)
  redis.call('HSET', r.key, 'frozen', nonce)
  run.continue('edit', d.name .. '/' .. run_id)
  return { 'STAGED' }
end
edit.begin()
for i = 5, #ARGV, 2 do edit.task(r, ARGV[i], redis.call('HGET', r.key, ARGV[i]), ARGV[i + 1]) end
edit.write(r)
edit.finish(r)
run.finish()
run.wake()
return { 'OK', r.state, edit.stopped }
