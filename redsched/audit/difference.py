"""One thing that is not as the runs themselves say it should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Difference:
    """`repair` is what a repairing script is told: in a shard (what, DAG, run, index, value, seen), in a pool (what, id, value)."""

    cell: str
    key: str
    there: str
    should: str
    means: str
    repair: tuple[str, ...] = ()
    dag: str = ""
    run: str = ""
    task: str = ""
    attempt: int = 0

    def shown(self) -> dict[str, Any]:
        """For people and JSON."""
        return {
            "cell": self.cell,
            "key": self.key,
            "dag": self.dag or None,
            "run": self.run or None,
            "task": self.task or None,
            "attempt": self.attempt or None,
            "there": self.there,
            "should": self.should,
            "means": self.means,
        }

    def __str__(self) -> str:
        what = "/".join(x for x in (self.dag, self.run, self.task, str(self.attempt or "")) if x)
        place = f"{self.cell} {self.key}" + (f" ({what})" if what else "")
        return f"{place}: {self.there}, should be {self.should}: {self.means}"
