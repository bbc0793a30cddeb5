"""What an installation under faults has to do: runs of several shapes, and slots of a schedule, from a thread of its own.

Each body leaves a line when it begins and one when it has had its effect, with the seat of the worker that ran it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any, Final, NamedTuple

from redsched.client import Client
from redsched.errors import RedschedError
from tests.processes import Site, Tasks, dag20, until

BODIES: Final = """
import os, time
from redsched import Branch, context
from bodies import say as line

SEAT = os.environ.get("SEAT", "-")

def say(word):
    line(f"{word}@{SEAT}")

def work(seconds):
    say("begun")
    time.sleep(seconds)
    say("ended")

def flaky(seconds):
    say("begun")
    if context().attempt == 1:
        raise ValueError("as it should be")
    time.sleep(seconds)
    say("ended")

def choose(seconds):
    work(seconds)
    return Branch("left")
"""
SHELL: Final = """say() { echo "$REDSCHED_RUN $REDSCHED_TASK $REDSCHED_ATTEMPT $$ $1@$SEAT" >> "$TRAIL"; }
say begun; sleep 0.1; say ended"""
BACKLOG: Final = 100  # runs
TICK_S: Final = 2  # of the schedule


def work(seconds: float, *needs: str, call: str = "work", **more: Any) -> dict[str, Any]:
    return {"call": f"load_bodies:{call}", "with": {"seconds": seconds}, "needs": list(needs), **more}


def shapes() -> dict[str, Tasks]:
    """DAG -> its tasks: deep, wide, both, commands, long bodies, failures, choices."""
    wide = [f"w{i}" for i in range(12)]
    lines = {
        name: {"run": SHELL, "needs": needs} for name, needs in {"a": [], "b": ["a"], "c": ["a"]}.items()
    }
    return {
        "chain": {f"t{i}": work(0.02, *([f"t{i - 1}"] if i else [])) for i in range(6)},
        "fan": {"first": work(0.02), **{w: work(0.05, "first") for w in wide}, "join": work(0.02, *wide)},
        "layers": {name: {**work(0.01), **task} for name, task in dag20("load_bodies:work").items()},
        "lines": lines,
        "long": {"a": work(1.5), "b": work(0.8, "a", pool={"name": "narrow", "slots": 3})},
        "flaky": {"a": work(0.02, call="flaky"), "b": work(0.02, "a")},
        "choice": {
            "first": work(0.02, call="choose"),
            "left": work(0.02, "first"),
            "right": work(0.02, "first"),
            "last": work(0.02, "left", "right", trigger_rule="all_done"),
        },
    }


def write_bodies(site: Site) -> None:
    (site.folder / "load_bodies.py").write_text(BODIES)


def register(site: Site) -> list[str]:
    """All shapes and the schedule; the names of those that are triggered."""
    write_bodies(site)
    # A child that is killed costs a retry; one whose worker dies does not.
    rest = {
        "defaults": {"retries": 50, "retry_delay": "100ms"},
        "max_active_runs": 1000,
        "max_active_tasks": 1000,
    }
    for dag, tasks in shapes().items():
        site.dag(dag, tasks, **rest)
    site.dag("ticks", {"t": work(0.02)}, schedule={"every": f"{TICK_S}s"}, catchup=True, **rest)
    return list(shapes())


class Refused(NamedTuple):
    """A trigger that failed: its run may have been made all the same."""

    dag: str
    run: str
    error: RedschedError


class Load(threading.Thread):
    """Triggers runs of these DAGs in turn, as long as it is not told to stop; a call that fails is kept.

    With `edits`, some are cancelled or cleared soon after, whether they have ended or not.
    """

    def __init__(self, site: Site, dags: Sequence[str], pause_s: float, edits: bool) -> None:
        super().__init__(name="load", daemon=True)
        self.edits = edits
        self.client, self.dags, self.pause_s = Client(settings=site.settings), cycle(dags), pause_s
        self.runs: list[tuple[str, str]] = []
        self.refused: list[Refused] = []
        self.cancelled: set[str] = set()
        self.cleared: set[str] = set()
        self.over = threading.Event()

    def run(self) -> None:
        for number, dag in enumerate(self.dags):
            if self.over.wait(self.pause_s) or (self.edits and number % 10 == 0 and not self._room()):
                break
            run = f"{dag}-{number}"
            try:
                self.client.trigger(dag, run=run)
            except RedschedError as error:
                self.refused.append(Refused(dag, run, error))
            else:
                if self.edits and self.runs:
                    self._edit(number)
                self.runs.append((dag, run))
        self.client.close()

    def _room(self) -> bool:
        """Wait while the backlog is long, because what can't be done in time looks like what is stuck. False: it is over."""
        while not self.over.is_set():
            with contextlib.suppress(RedschedError):
                if sum(s["runs_queued"] + s["runs_running"] for s in self.client.shards()) < BACKLOG:
                    return True
            self.over.wait(0.1)
        return False

    def _edit(self, number: int) -> None:
        with contextlib.suppress(RedschedError):  # it has ended; or nobody could say so
            if number % 20 == 5:
                dag, run = self.runs[-1]
                self.cancelled.add(run)
                self.client.cancel(dag, run)
            elif number % 20 == 15:
                dag, run = self.runs[-1 if number % 40 == 15 else -10]
                self.cleared.add(run)
                self.client.clear(dag, run)

    def progress(self, count: int) -> None:
        """Wait until so many more were accepted."""
        wanted = len(self.runs) + count
        until(
            lambda: len(self.runs) >= wanted,
            lambda: f"no progress after {wanted - count} runs: {self.refused}",
        )

    def end(self) -> list[tuple[str, str]]:
        self.over.set()
        self.join()
        return self.runs


@contextmanager
def load(site: Site, *dags: str, pause_s: float = 0.05, edits: bool = False) -> Iterator[Load]:
    made = Load(site, dags, pause_s, edits)
    made.start()
    try:
        yield made
    finally:
        made.end()
