-- report: what happened to attempts, appended to the inbox; a result is stored first, under its attempt's number.
-- cell: shard
-- keys: prefix inbox
-- args: ...
-- Four values a report: itself (lib/inbox.lua), reason, extra (JSON or ''), result (JSON or '').
-- returns: number of reports
-- errors: none (a report for an attempt that is not current is found stale when it is applied)
-- cost: O(reports)
-- include: lib/ids.lua
for i = 1, #ARGV, 4 do
  local report, reason, extra, result = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if result ~= '' then
    -- A late worker must not bring back the results of a run that has been deleted.
    local dag, run_id, index, attempt = ids.current(prefix, string.match(report, '^%a+\t([^\t]+)'))
    if dag then redis.call('HSET', prefix .. 'results:' .. dag .. ':' .. run_id, index .. '.' .. attempt, result) end
  end
  if reason == '' and extra == '' then
    redis.call('XADD', inbox, '*', 'report', report)
  else
    redis.call('XADD', inbox, '*', 'report', report, 'reason', reason, 'extra', extra)
  end
end
return #ARGV / 4
