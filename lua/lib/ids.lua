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
