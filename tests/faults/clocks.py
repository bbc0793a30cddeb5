"""Hosts whose clock is wrong: processes that are told another time of day. Their monotonic clock is right, as on a real host.

A library of twenty lines, made with the machine's C compiler: libfaketime 0.9.10, which Debian has, refuses the absolute
sleeps of Python 3.11 with EINVAL as soon as it leaves the monotonic clock alone.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

WHY = "gives processes a wrong clock, and needs a C compiler (cc) for it"
SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, at);
    if (failed || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
    const char *ahead = getenv("CLOCK_AHEAD_MS");
    long long ns = at->tv_nsec + (ahead ? atoll(ahead) : 0) * 1000000LL;
    at->tv_sec += ns / 1000000000 - (ns % 1000000000 < 0);
    at->tv_nsec = (ns % 1000000000 + 1000000000) % 1000000000;
    return 0;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec, at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return at ? *at = now.tv_sec : now.tv_sec;
}
"""


@cache
def library() -> Path | None:
    """Made once a process; None without a compiler."""
    if not (compiler := shutil.which("cc")):
        return None
    made = Path(mkdtemp(prefix="redsched-clock-")) / "clock.so"
    words = [compiler, "-shared", "-fPIC", "-O1", "-w", "-x", "c", "-", "-o", str(made), "-ldl"]
    done = subprocess.run(words, input=SOURCE.encode(), capture_output=True, check=False)
    return made if done.returncode == 0 else None


def wrong_clock(ahead_s: float) -> dict[str, str]:
    """The environment of a process whose clock is so much ahead."""
    path = library()
    assert path, WHY
    return {"LD_PRELOAD": str(path), "CLOCK_AHEAD_MS": str(round(ahead_s * 1000))}
