"""How long until the shards are balanced: after schedulers come, one dies, half of them die, one leaves. JSON on stdout.

`simulated`: N schedulers of the real code in one process, each with its own beats, against a real server in real time.
`real`: processes; a start is counted from when it is seen, a pause is SIGSTOP. Lease 3 s; 16 shards, or two for each scheduler if that is more.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Final

from redsched.bench.machine import load, where
from redsched.scheduler.loop import Scheduler
from redsched.settings import Settings
from redsched.store import Store
from tests.conftest import Server
from tests.faults.soak import server_name
from tests.faults.test_ownership import sizes
from tests.processes import Site, until

SHARDS: Final = 16
LEASE_MS: Final = 3000
CROWDS: Final = (1, 2, 3, 4, 8, 16, 32, 64)
PATIENCE_S: Final = 30.0
PAUSE_S: Final = 0.005


class Crowd:
    """Schedulers in one process: each keeps its lease by itself, and nothing else happens."""

    def __init__(self, settings: Settings, count: int) -> None:
        self.store = Store.open(settings, "bench")
        self.all = [self.new(i) for i in range(count)]

    def new(self, number: int) -> Scheduler:
        made = Scheduler(self.store, f"sim{number}:{number}:x")
        made._idle = True  # as one that waits for what does not come
        return made

    def balanced(self) -> bool:
        held = sorted(len(x.ownership.tokens) for x in self.all)
        owned = {s for x in self.all for s in x.ownership.tokens}
        return held[-1] - held[0] <= 1 and sum(held) == len(owned) == self.store.shards

    def took(self) -> float:
        """Seconds until balance, everybody beating when it is due."""
        begun = time.monotonic()
        while not self.balanced():
            for one in self.all:
                one.upkeep()
            if time.monotonic() > begun + PATIENCE_S:
                raise SystemExit(f"no balance among {len(self.all)} within {PATIENCE_S:g} s")
            time.sleep(PAUSE_S)
        return round(time.monotonic() - begun, 2)

    def rest(self, seconds: float) -> None:
        """So that leases are not all of one age."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for one in self.all:
                one.upkeep()
            time.sleep(PAUSE_S)


def simulated(settings: Settings, count: int) -> dict[str, float]:
    crowd = Crowd(replace(settings, namespace=f"lease{count}", shards=max(SHARDS, 2 * count)), count)
    found = {"all_come_s": crowd.took()}
    crowd.rest(2)
    crowd.all.append(crowd.new(count))
    found["one_comes_s"] = crowd.took()
    crowd.rest(1)
    crowd.all.pop().ownership.leave()
    found["one_leaves_s"] = crowd.took()
    if count > 1:
        crowd.rest(1)
        crowd.all.pop(0)
        found["one_dies_s"] = crowd.took()
    if count > 3:
        crowd.rest(1)
        crowd.all = crowd.all[::2]
        found["half_die_s"] = crowd.took()
    crowd.store.close()
    return found


def real(site: Site, count: int) -> dict[str, float]:
    """Processes: one more comes, one is stopped and woken, one leaves, one is killed."""

    def took(wanted: int, event: Callable[[], object]) -> float:
        event()
        begun = time.monotonic()
        each, over = divmod(SHARDS, wanted)
        goal = sorted([each] * (wanted - over) + [each + 1] * over)
        until(lambda: sizes(site) == goal, f"no balance among {wanted}")
        return round(time.monotonic() - begun, 2)

    def come() -> None:
        made = site.scheduler()
        until(lambda: made.pid in site.scheduler_names(), "it does not come")
        all_.append(made)

    all_, _ = site.start(count, 0)
    took(count, lambda: None)
    found = {"one_comes_s": took(count + 1, come)}
    found["one_is_stopped_s"] = took(count, lambda: all_[0].signal(signal.SIGSTOP))
    found["it_wakes_s"] = took(count + 1, lambda: all_[0].signal(signal.SIGCONT))
    found["one_leaves_s"] = took(count, lambda: all_.pop().stop())
    found["one_is_killed_s"] = took(count - 1, lambda: all_.pop().kill())
    for one in all_:
        one.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--crowds", type=int, nargs="*", default=list(CROWDS), metavar="N")
    parser.add_argument("--real", type=int, nargs="*", default=[2, 3, 5], metavar="N")
    given = parser.parse_args()
    folder, busy = Path(tempfile.mkdtemp(prefix="redsched-lease-")), load()
    (folder / "server").mkdir()
    server = Server(folder / "server")
    try:
        with (folder / "said").open("w") as said, redirect_stdout(said):
            settings = Settings(redis=server.url, lease_ms=LEASE_MS)
            crowds = {str(n): _told(n, simulated(settings, n)) for n in given.crowds}
            processes = {str(n): _told(n, _real(folder, server, n)) for n in given.real}
        name = server_name(server)
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
    worst = max(s for found in (*crowds.values(), *processes.values()) for s in found.values())
    numbers = {"simulated": crowds, "real": processes, "worst_s": worst}
    print(json.dumps({"workload": "lease", **where(name, busy), **numbers}))


def _real(folder: Path, server: Server, count: int) -> dict[str, float]:
    with Site(folder / f"real{count}", server, lease_ms=LEASE_MS, shards=SHARDS) as site:
        found = real(site, count)
        site.forget()
    return found


def _told(count: int, found: dict[str, float]) -> dict[str, float]:
    print(f"{count:3}  " + "  ".join(f"{k} {v:.2f}" for k, v in found.items()), file=sys.stderr)
    return found


if __name__ == "__main__":
    main()
