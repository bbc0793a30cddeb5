-- audit_names: where a round of the audit begins: the runs that are live, by the shard's lists; and what stands there in error.
-- cell: shard
-- keys: prefix
-- args: offset limit
-- flags: flags=no-writes
-- returns: {DAG/run (with a generation, where a list keeps one), …}, {stops of attempts that are wanted}, {timers of no kind}
-- errors: none
-- cost: O(limit)
-- include: lib/clock.lua
-- include: lib/run.lua
run.begin(prefix, '', clock.now())
local seen, names, stops, timers = {}, {}, {}, {}
for _, list in ipairs({ 'running_runs', 'queued_runs', 'outbox', 'ended' }) do
  for _, name in ipairs(redis.call('ZRANGE', prefix .. list, offset, offset + limit - 1)) do
    if not seen[name] then
      seen[name] = true
      names[#names + 1] = name
    end
  end
end
for _, stop in ipairs(redis.call('SSCAN', prefix .. 'stops', 0, 'COUNT', 100)[2]) do
  local _, _, rec, attempt = run.attempt(string.match(stop, '^[^/]+/(.+)$') or '')
  if rec and rec.attempt == attempt and record.LIVE[rec.state] then stops[#stops + 1] = stop end
end
for _, timer in ipairs(redis.call('ZRANGE', prefix .. 'timers', 0, 99)) do
  local kind = string.match(timer, '^(%a+)/')
  if kind ~= 'retry' and kind ~= 'timeout' and kind ~= 'expire' and kind ~= 'deadline' then timers[#timers + 1] = timer end
end
return { names, stops, timers }
