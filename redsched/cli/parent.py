"""A child of `redsched up` ends when `up` is gone, even if that was killed with SIGKILL.

`up` names itself in REDSCHED_PARENT_PID. The variable is taken out of the environment at once, because the
tasks that a worker starts must not follow it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

VARIABLE = "REDSCHED_PARENT_PID"
PAUSE_S = 0.5
PR_SET_PDEATHSIG = 1
# What the kernel sends, once for each thread that `up` had: a second SIGTERM would mean "stop the bodies, too".
ORPHANED = signal.SIGUSR2

_child = False
_untold = [ORPHANED]


def is_child() -> bool:
    """Was this process started by `redsched up`?"""
    return _child


def follow_parent() -> bool:
    """SIGTERM for this process when its parent ends. True if it is a child of `up`."""
    text = os.environ.pop(VARIABLE, "")
    if not text.isdecimal():
        return False
    global _child
    _child, parent = True, int(text)
    # The kernel's own signal needs no thread, and a worker forks: threads and forks do not mix well.
    if not _ask_kernel():
        threading.Thread(target=_poll, args=(parent,), name="follow-parent", daemon=True).start()
    if os.getppid() != parent:  # it ended before we asked
        os.kill(os.getpid(), signal.SIGTERM)
    return True


def _ask_kernel() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes

        signal.signal(ORPHANED, _end)
        return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ORPHANED, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _end(*_: object) -> None:
    try:
        _untold.pop()  # in one step, because the next signal may come in the middle of this
    except IndexError:
        return
    os.kill(os.getpid(), signal.SIGTERM)


def _poll(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PAUSE_S)
    os.kill(os.getpid(), signal.SIGTERM)
