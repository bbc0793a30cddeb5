-- include: lib/run.lua
-- include: lib/pool.lua
-- What became ready goes over to its pool in the same step, where both cells lie on one server: then nothing of it is in between.
-- What is not handed over here (on a cluster; if the pool is missing, too small, or has seen a higher fence) stays an offer.
local hand = {}

-- Keys from the `first` one on are prefixes of pools. Called before `run.write`.
function hand.over(keys, first, token)
  if #run.offers == 0 or not keys[first] then return end
  local shard, fence = 'shard' .. match(run.prefix, ':s:(%d+)}:$'), match(token, ':(%d+)$')
  local lines, left = {}, {}
  for i = first, #keys do lines[match(keys[i], ':p:(.+)}:$')] = { prefix = keys[i] } end
  for _, offer in ipairs(run.offers) do
    local line = lines[offer.pool] or left
    line[#line + 1] = offer
  end
  for _, line in pairs(lines) do
    local answer = {}
    if #line > 0 then
      pool.begin(line.prefix, run.now)
      if pool.open(shard) and not pool.refused(shard, fence) then answer = pool.take(line, run.now + 1) end
    end
    for i, offer in ipairs(line) do
      if answer[i] == 'T' then run.has(offer) else left[#left + 1] = offer end
    end
  end
  run.offers = left
end
