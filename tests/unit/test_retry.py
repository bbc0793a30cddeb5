"""Retry delays: exponential, capped, never an overflow, with jitter inside its band."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from redsched.retry import CEILING_MS, retry_delay_ms


def test_the_delay_doubles_up_to_the_cap() -> None:
    """RT-107: 300, 600, 1200, 2400, then 3600 seconds for ever."""
    delays = [retry_delay_ms(300_000, 2, 3_600_000, 0, n, "x") for n in range(1, 2001)]
    assert delays[:5] == [300_000, 600_000, 1_200_000, 2_400_000, 3_600_000]
    assert set(delays[4:]) == {3_600_000}


def test_without_a_cap_seven_days_is_the_ceiling() -> None:
    """RT-107: high attempt numbers end at the ceiling, and no cap lies above it."""
    assert retry_delay_ms(300_000, 2, 0, 0, 2_000, "x") == CEILING_MS
    assert retry_delay_ms(300_000, 100, 0, 0, 10**9, "x") == CEILING_MS
    assert retry_delay_ms(300_000, 2, 10 * CEILING_MS, 0, 2_000, "x") == CEILING_MS


def test_no_delay_stays_no_delay() -> None:
    """0 grows to nothing."""
    assert retry_delay_ms(0, 100, 0, 1, 10**6, "x") == 0


def test_jitter_is_the_same_for_the_same_seed() -> None:
    """Every process computes the same delay; other attempts get others."""
    once = [retry_delay_ms(10_000, 1, 0, 0.5, 1, f"a/r/0/{n}") for n in range(20)]
    assert once == [retry_delay_ms(10_000, 1, 0, 0.5, 1, f"a/r/0/{n}") for n in range(20)]
    assert len(set(once)) > 10


@settings(deadline=None)
@given(
    base=st.integers(0, CEILING_MS),
    backoff=st.floats(1, 100),
    cap=st.integers(0, CEILING_MS),
    jitter=st.floats(0, 1),
    failures=st.integers(1, 10**7),
    seed=st.text(),
)
def test_every_delay_lies_in_its_band(
    base: int, backoff: float, cap: int, jitter: float, failures: int, seed: str
) -> None:
    """Whatever is asked for: a whole number from 0 to cap × (1 + jitter), around the delay without jitter."""
    plain = retry_delay_ms(base, backoff, cap, 0, failures, seed)
    assert 0 <= plain <= (cap or CEILING_MS)
    assert plain >= retry_delay_ms(base, backoff, cap, 0, max(1, failures - 1), seed)
    delay = retry_delay_ms(base, backoff, cap, jitter, failures, seed)
    assert isinstance(delay, int)
    assert plain * (1 - jitter) - 1 <= delay <= plain * (1 + jitter) + 1
