"""A load, a siege, an audit: one installation under so many faults for so long, and a report of what became of its work."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from redsched.bench.stats import quantile
from tests.conftest import Server
from tests.processes import KEPT, Site

from .audit import Findings, audit
from .clocks import library
from .load import load, register
from .siege import Siege, plan


@dataclass(frozen=True)
class Soak:
    """What is to be done. `seconds`: faults are spread over them; 0 is as fast as the installation recovers."""

    seed: int = 1
    kills: int = 200
    others: int = 140
    seconds: float = 600.0
    pause_s: float = 0.05  # between two triggers
    lease_ms: int = 3000
    worker_lease_ms: int = 10_000


@dataclass(frozen=True)
class Report:
    soak: Soak
    server: str
    seconds: float
    faults: dict[str, int]
    restarted: int
    longest_pause_s: float
    findings: Findings

    @property
    def kills(self) -> int:
        return sum(
            n for name, n in self.faults.items() if name.startswith("kill ") and name != "kill connections"
        )

    @property
    def ok(self) -> bool:
        found = self.findings
        return not (found.lost or found.stuck or found.wrong)

    def numbers(self) -> dict[str, Any]:
        """For programs; `duplicates` are those of `again` that had had their effect."""
        found = self.findings
        counted = ("runs", "refused", "slots", "tasks", "executions", "asked_for")
        waits = {f"queued_after_ms_p{q}": round(quantile(found.waits_ms, q / 100)) for q in (50, 95, 99)}
        return {
            **asdict(self.soak),
            "took_s": round(self.seconds, 1),
            "clocks_wrong": library() is not None,
            "kills": self.kills,
            "faults": self.faults,
            "restarted": self.restarted,
            **{name: getattr(found, name) for name in counted},
            "lost": found.lost,
            "stuck": found.stuck,
            "wrong": found.wrong,
            "duplicates": len(found.duplicates),
            "again": [asdict(x) for x in found.again],
            "longest_pause_s": round(self.longest_pause_s, 2),
            **waits,
            "queued_after_ms_max": max(found.waits_ms, default=None),
        }

    def text(self) -> str:
        found = self.findings
        lines = [
            f"seed {self.soak.seed}, {self.seconds:.0f} s, {self.server}, clocks {'±5 min' if library() else 'right'}",
            "faults      " + ", ".join(f"{name} {n}" for name, n in sorted(self.faults.items())),
            f"work        {found.runs} runs, {found.tasks} tasks, {found.executions} executions, {found.slots} slots",
            f"kills {self.kills}, lost {len(found.lost)}, stuck {len(found.stuck)}, duplicates {len(found.duplicates)}, "
            f"cut off before their effect {len(found.again) - len(found.duplicates)}, not explained {len(found.wrong)}",
        ]
        for one in sorted(found.again, key=lambda x: not x.whole):
            effect = "twice" if one.whole else "again"
            lines.append(
                f"  {effect}: {one.run} {one.task}, attempt {one.attempt} on {one.worker}: {one.outcome}; {one.fault}"
            )
        for name in ("lost", "stuck", "wrong"):
            lines += [f"  {name}: {one}" for one in getattr(found, name)]
        return "\n".join(lines)


def run(folder: Path, soak: Soak) -> Report:
    (folder / "server").mkdir(parents=True)
    server = Server(folder / "server", *KEPT)
    times = {"lease_ms": soak.lease_ms, "worker_lease_ms": soak.worker_lease_ms}
    try:
        with Site(folder / "site", server, **times) as site, Siege(site) as siege:
            dags, began, broken = register(site), time.monotonic(), ""
            with load(site, *dags, pause_s=soak.pause_s, edits=True) as busy:
                try:
                    siege.run(plan(soak.seed, soak.kills, soak.others), soak.seconds)
                except AssertionError as error:
                    broken = str(error)
            took = time.monotonic() - began
            found = audit(siege, busy)
            found.wrong += [broken] if broken else []
            return Report(
                soak,
                server_name(server),
                took,
                dict(Counter(event.step.fault for event in siege.events)),
                len(siege.restarted),
                siege.longest_pause_s,
                found,
            )
    finally:
        server.kill()


def server_name(server: Server) -> str:
    info = server.say("INFO", "server")
    valkey = info.get("valkey_version")
    return f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"
