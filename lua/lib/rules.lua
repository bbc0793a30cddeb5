-- Trigger rules, decided from counters: n upstreams, s success, f failed or upstream_failed, k skipped.
-- The answer is nil (wait), 'r' (run), 'k' (skipped) or 'u' (upstream_failed), given only when it can't change any more.
-- Twin of redsched/rules.py, which is the oracle of its tests. Letters: redsched/states.py TRIGGER_RULES.
local rules = {}

rules.decide = {
  -- all_success
  a = function(n, s, f, k)
    if s == n then return 'r' elseif f > 0 then return 'u' elseif s + f + k == n then return 'k' end
  end,
  -- all_failed
  b = function(n, s, f, k)
    if f == n then return 'r' elseif s + k > 0 then return 'k' end
  end,
  -- all_done
  c = function(n, s, f, k)
    if s + f + k == n then return 'r' end
  end,
  -- all_skipped
  d = function(n, s, f, k)
    if k == n then return 'r' elseif s + f > 0 then return 'k' end
  end,
  -- one_success
  e = function(n, s, f, k)
    if s > 0 then return 'r' elseif s + f + k == n then return k == n and 'k' or 'u' end
  end,
  -- one_failed
  f = function(n, s, f, k)
    if f > 0 then return 'r' elseif s + f + k == n then return 'k' end
  end,
  -- one_done
  g = function(n, s, f, k)
    if s + f > 0 then return 'r' elseif k == n then return 'k' end
  end,
  -- none_failed
  h = function(n, s, f, k)
    if f > 0 then return 'u' elseif s + k == n then return 'r' end
  end,
  -- none_failed_min_one_success
  i = function(n, s, f, k)
    if f > 0 then return 'u' elseif k == n then return 'k' elseif s + k == n then return 'r' end
  end,
  -- none_skipped
  j = function(n, s, f, k)
    if k > 0 then return 'k' elseif s + f == n then return 'r' end
  end,
  -- all_done_min_one_success
  k = function(n, s, f, k)
    if s + f + k < n then return nil elseif s > 0 then return 'r' end
    return k == n and 'k' or 'u'
  end,
  -- always
  l = function()
    return 'r'
  end,
}
