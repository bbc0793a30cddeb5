-- report: what happened to attempts, appended to the inbox; a result is stored first, under its attempt's number.
-- cell: shard
-- keys: ...
-- Two a shard: prefix, inbox. Several shards only where one server holds them all.
-- args: worker ...
-- For each shard how many reports it gets, and of each: attempt id, what is said of it (lib/inbox.lua), result (JSON or '').
-- returns: number of reports
-- errors: none (a report for an attempt that is not current is found stale when it is applied)
-- cost: O(reports)
-- include: lib/ids.lua
local at, reports = 2, 0
for k = 1, #KEYS, 2 do
  local prefix, inbox, entry = KEYS[k], KEYS[k + 1], { 'report', worker }
  local last = at + 3 * ARGV[at]
  for i = at + 1, last, 3 do
    local id, result = ARGV[i], ARGV[i + 2]
    if result ~= '' then
      -- A late worker must not bring back the results of a run that has been deleted.
      local dag, run_id, index, attempt = ids.current(prefix, id)
      if dag then redis.call('HSET', prefix .. 'results:' .. dag .. ':' .. run_id, index .. '.' .. attempt, result) end
    end
    entry[#entry + 1], entry[#entry + 2] = id, ARGV[i + 1]
  end
  redis.call('XADD', inbox, '*', unpack(entry))
  at, reports = last + 1, reports + (last - at) / 3
end
return reports
