-- cancel_run: nothing of the run starts any more; what runs is stopped; its places are free at once.
-- cell: shard
-- keys: prefix inbox
-- args: dag run_id
-- returns: {OK | ENDED | FROZEN, state, attempts to be stopped}
-- errors: NOTFOUND, RESHARDED
-- cost: O(its tasks that have begun): 10,000 tasks ~ 10 ms
-- include: lib/clock.lua
-- include: lib/cancel.lua
-- include: lib/shut.lua
local closed = shut.refused(prefix)
if closed then return closed end
run.begin(prefix, inbox, clock.now())
local d = run.dag(dag)
local r = d and run.open(d.name, run_id)
if not r then
  if redis.call('HEXISTS', prefix .. 'packed:' .. dag, run_id) == 1 then return { 'ENDED', 'ended', 0 } end
  return redis.error_reply('NOTFOUND run ' .. run_id .. ' of DAG ' .. dag)
end
if r.frozen then return { 'FROZEN', r.state, 0 } end
if r.state ~= 'running' and r.state ~= 'queued' then return { 'ENDED', r.state, 0 } end
local stopped = cancel.run(r, 'cancelled')
run.finish()
run.wake()
return { 'OK', 'cancelled', stopped }
