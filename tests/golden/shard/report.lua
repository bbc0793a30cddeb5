-- Attempt ids of the current DAG of that name: `dag[~generation]/run/index/attempt`.
local ids = {}

-- dag, run id, index, attempt; nil if the attempt belongs to a DAG that was deleted, or its run is gone.
function ids.current(prefix, id)
  local dag, generation, run_id, index, attempt = string.match(id, '^([^/~]+)~?(%d*)/([^/]+)/(%d+)/(%d+)$')
  if not dag then return nil end
  local now = redis.call('HGET', prefix .. 'dag:' .. dag, 'generation')
  if now ~= (generation == '' and '0' or generation) then return nil end
  if redis.call('EXISTS', prefix .. 'run:' .. dag .. ':' .. run_id) == 0 then return nil end
  return dag, run_id, index, attempt
end
local prefix = KEYS[1]
local inbox = KEYS[2]
-- report: what happened to attempts, appended to the inbox; a result is stored first, under its attempt's number.
-- cell: shard
-- keys: prefix inbox
-- args: ...
-- Eight values a report: kind, attempt id, outcome, ms, worker, reason, extra (JSON or ''), result (JSON or '').
-- returns: number of reports
-- errors: none (a report for an attempt that is not current is found stale when it is applied)
-- cost: O(reports)
for i = 1, #ARGV, 8 do
  local id, result = ARGV[i + 1], ARGV[i + 7]
  if result ~= '' then
    -- A late worker must not bring back the results of a run that has been deleted.
    local dag, run_id, index, attempt = ids.current(prefix, id)
    if dag then
      redis.call('HSET', prefix .. 'results:' .. dag .. ':' .. run_id, index .. '.' .. attempt, result)
    end
  end
  redis.call('XADD', inbox, '*', 'kind', ARGV[i], 'id', id, 'outcome', ARGV[i + 2], 'ms', ARGV[i + 3],
    'worker', ARGV[i + 4], 'reason', ARGV[i + 5], 'extra', ARGV[i + 6])
end
return #ARGV / 8
