"""The processes of `up`: started, their lines passed on, started again when they die, stopped in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

import redsched
from redsched.cli.parent import VARIABLE

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
LIVED_WELL_S = 60.0  # a process that lived so long starts with the shortest pause again

Say = Callable[[str, str], None]


def program(*words: str) -> list[str]:
    """The command line of another redsched process."""
    # Without -P the working folder comes first on the import path, and a `calendar.py` there would break us.
    beside = Path(redsched.__file__).resolve().parents[1] == Path.cwd().resolve()
    return [sys.executable, *([] if beside else ["-P"]), "-m", "redsched", *words]


class Child:
    """One process. `look()` starts it again if it died; a child that was told to stop is left alone."""

    def __init__(self, name: str, words: Sequence[str], env: Mapping[str, str], say: Say) -> None:
        self.name, self.words, self.say = name, list(words), say
        self.env = {**env, VARIABLE: str(os.getpid())}
        self.process: subprocess.Popen[bytes] | None = None
        self.stopping = False
        self._pause, self._began, self._due = FIRST_PAUSE_S, 0.0, 0.0

    def start(self) -> None:
        """Call it in the main thread: the kernel signals a child when the *thread* that made it ends."""
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            program(*self.words),
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # because Ctrl-C is ours: we stop them in order
        )
        assert self.process.stdout is not None
        threading.Thread(target=self._pass_on, args=(self.process.stdout,), daemon=True).start()

    def _pass_on(self, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                if text:
                    self.say(self.name, text)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def look(self) -> None:
        if self.stopping or self.alive:
            return
        now = time.monotonic()
        if self.process is not None:
            self._died(self.process, now)
        elif now >= self._due:
            self.start()

    def _died(self, process: subprocess.Popen[bytes], now: float) -> None:
        if now - self._began > LIVED_WELL_S:
            self._pause = FIRST_PAUSE_S
        self.say(
            self.name, f"WARNING {how_it_ended(process.returncode)}; starting again in {self._pause:g} s"
        )
        self.process, self._due = None, now + self._pause
        self._pause = min(LONGEST_PAUSE_S, self._pause * 2)

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def terminate(self) -> None:
        self.stopping = True
        self.signal(signal.SIGTERM)


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def stop_all(children: Iterable[Child], patience_s: float, hurry: Callable[[], bool]) -> None:
    """SIGTERM; once more when `hurry()` says so; SIGKILL when the patience is over."""
    children = list(children)
    for child in children:
        child.terminate()
    end, hurried = time.monotonic() + patience_s, False
    while any(child.alive for child in children) and time.monotonic() < end:
        if hurry() and not hurried:
            hurried = True
            for child in children:
                child.terminate()
        time.sleep(0.05)
    for child in children:
        child.signal(signal.SIGKILL)
        if child.process is not None:
            child.process.wait()
