-- create_run: a run of the DAG's current version. Its roots become ready, or it is queued over max_active_runs.
-- cell: shard
-- keys: prefix inbox
-- args: dag run_id kind logical params nonce keys
-- logical: ms or ''. params: JSON or ''. keys: JSON of task index -> concurrency key, or ''. nonce: made by the caller, so
-- that a repeated call gets the same answer.
-- returns: {CREATED | EXISTS, state, run id}
-- errors: NOTFOUND, RESHARDED
-- cost: O(its roots), at most 500 of them in this call
-- include: lib/clock.lua
-- include: lib/create.lua
-- include: lib/shut.lua
local closed = shut.refused(prefix)
if closed then return closed end
run.begin(prefix, inbox, clock.now())
local d = run.dag(dag)
if not d then return redis.error_reply('NOTFOUND DAG ' .. dag) end
if d.deleted then return redis.error_reply('NOTFOUND DAG ' .. dag .. ' (it is being deleted)') end
local answer = create.run(d, run_id, kind, logical, params, nonce, keys)
run.finish()
run.wake()
return answer
