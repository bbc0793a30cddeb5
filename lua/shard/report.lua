-- report: what happened to attempts, appended to the inbox; a result is stored first, under its attempt's number.
-- cell: shard
-- keys: prefix inbox
-- args: worker ...
-- Three values a report: attempt id, what is said of it (lib/inbox.lua), result (JSON or ''). At most 1000.
-- returns: number of reports
-- errors: none (a report for an attempt that is not current is found stale when it is applied)
-- cost: O(reports)
-- include: lib/ids.lua
local entry = { 'report', worker }
for i = 2, #ARGV, 3 do
  local id, result = ARGV[i], ARGV[i + 2]
  if result ~= '' then
    -- A late worker must not bring back the results of a run that has been deleted.
    local dag, run_id, index, attempt = ids.current(prefix, id)
    if dag then redis.call('HSET', prefix .. 'results:' .. dag .. ':' .. run_id, index .. '.' .. attempt, result) end
  end
  entry[#entry + 1], entry[#entry + 2] = id, ARGV[i + 1]
end
redis.call('XADD', inbox, '*', unpack(entry))
return (#ARGV - 1) / 3
