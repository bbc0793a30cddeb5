"""The little statistics that measurements need. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean


def quantile(values: Sequence[float], q: float) -> float:
    """The value below which a share `q` lies, between neighbours in proportion; NaN of nothing."""
    if not values:
        return math.nan
    ranked = sorted(values)
    place = q * (len(ranked) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """k of the law y ~ x^k that fits best (least squares of the logarithms). 0: y does not depend on x; 1: in proportion."""
    logs = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len({x for x, _ in logs}) < 2:
        return math.nan
    middle_x, middle_y = fmean(x for x, _ in logs), fmean(y for _, y in logs)
    above = sum((x - middle_x) * (y - middle_y) for x, y in logs)
    return above / sum((x - middle_x) ** 2 for x, _ in logs)


def rate_of_rest(times: Sequence[float], skip: float = 0.1) -> float:
    """Events a second without the first tenth, in which processes still start. `times` in seconds; NaN of fewer than two."""
    ranked = sorted(times)
    first = int(len(ranked) * skip)
    if len(ranked) - first < 2 or ranked[-1] <= ranked[first]:
        return math.nan
    return (len(ranked) - 1 - first) / (ranked[-1] - ranked[first])
