"""How long to wait before the next attempt: exponential, capped, with jitter that can be repeated.

Pure; twin of `lua/lib/retry.lua`. The same numbers give the same delay in every process, and no number of failures overflows.
"""

from __future__ import annotations

import math
import zlib
from typing import Final

CEILING_MS: Final = 7 * 86_400_000


def retry_delay_ms(base_ms: int, backoff: float, max_ms: int, jitter: float, failures: int, seed: str) -> int:
    """The delay after this many failures (1, 2, 3 …): base × backoff^(failures-1), at most the cap.

    The cap is `max_ms`, and never more than seven days. Jitter moves the capped delay by up to ± its
    share, always the same way for the same seed (the attempt id is a good one).
    """
    delay = _grown(base_ms, backoff, min(max_ms or CEILING_MS, CEILING_MS), max(failures, 1) - 1)
    turn = zlib.crc32(seed.encode()) / 2**32 * 2 - 1  # in [-1, 1)
    return max(0, math.floor(delay * (1 + jitter * turn)))


def _grown(base_ms: int, backoff: float, cap_ms: int, times: int) -> float:
    if base_ms <= 0:
        return 0
    # Because 2.0 ** 1999 is an OverflowError: ask the logarithms first whether the cap is reached.
    if math.log(base_ms) + times * math.log(max(backoff, 1)) > math.log(cap_ms) + 1e-9:
        return cap_ms
    return min(cap_ms, base_ms * float(backoff) ** times)
