-- How long to wait before the next attempt. Twin of redsched/retry.py.
local retry = { CEILING = 604800000 }

-- CRC-32 (IEEE), bit by bit over the low byte: Redis' `bit` library is not everywhere (fakeredis), so plain arithmetic.
local function xor(a, b)
  local result, place = 0, 1
  while a > 0 or b > 0 do
    local x, y = a % 2, b % 2
    if x ~= y then result = result + place end
    a, b, place = (a - x) / 2, (b - y) / 2, place * 2
  end
  return result
end

function retry.crc32(text)
  local crc = 4294967295
  for i = 1, #text do
    crc = xor(crc, string.byte(text, i))
    for _ = 1, 8 do
      local odd = crc % 2
      crc = (crc - odd) / 2
      if odd == 1 then crc = xor(crc, 3988292384) end
    end
  end
  return 4294967295 - crc
end

function retry.delay_ms(task, failures, seed)
  if task.delay == 0 then return 0 end
  local cap = task.max_delay > 0 and math.min(task.max_delay, retry.CEILING) or retry.CEILING
  local delay = math.min(task.delay * task.backoff ^ (failures - 1), cap)
  if task.jitter > 0 then
    delay = delay * (1 + task.jitter * (retry.crc32(seed) / 2147483648 - 1))
  end
  return math.floor(delay)
end
