"""What a clear or a mark does to a run: pure decisions from what the run is now; `shard/edit_run` carries them out.

Tasks below that were skipped or upstream_failed only because of what changes open again by themselves, and so does what
only a cancel of the run had ended; bodies that succeeded or failed on their own are touched only if they were selected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from redsched.rules import decide
from redsched.states import SETTLED

# Which of the three counters a settled upstream counts into; the packing is that of lua/lib/record.lua.
CLASS: Final[dict[str, int]] = {"success": 0, "failed": 1, "upstream_failed": 1, "cancelled": 1, "skipped": 2}
UNIT: Final = (1, 1 << 14, 1 << 28)
LETTER: Final = {"success": "s", "failed": "f", "skipped": "k", "upstream_failed": "u"}
FAILED: Final = frozenset({"failed", "upstream_failed"})


@dataclass(frozen=True)
class Graph:
    """The shape of a DAG by task index."""

    names: tuple[str, ...]
    needs: tuple[tuple[int, ...], ...]
    rules: tuple[str, ...]

    @classmethod
    def of(cls, spec: Mapping[str, Any], names: Sequence[str]) -> Graph:
        """From a canonical definition; `names` gives the indexes."""
        index = {n: i for i, n in enumerate(names)}
        tasks = [spec["tasks"][n] for n in names]
        return cls(
            tuple(names),
            tuple(tuple(index[u] for u in t.get("needs", ())) for t in tasks),
            tuple(t.get("trigger_rule", "all_success") for t in tasks),
        )

    @cached_property
    def downstream(self) -> tuple[tuple[int, ...], ...]:
        lists: list[list[int]] = [[] for _ in self.names]
        for child, ups in enumerate(self.needs):
            for up in ups:
                lists[up].append(child)
        return tuple(map(tuple, lists))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Indexes with every upstream before its downstream."""
        waiting = [len(n) for n in self.needs]
        queue = deque(i for i, n in enumerate(waiting) if n == 0)
        order = []
        while queue:
            i = queue.popleft()
            order.append(i)
            for child in self.downstream[i]:
                waiting[child] -= 1
                if waiting[child] == 0:
                    queue.append(child)
        return tuple(order)

    def reach(self, start: Iterable[int], steps: Sequence[Sequence[int]]) -> set[int]:
        """Everything that can be reached from `start` along `steps` (downstream or needs), with `start` itself."""
        seen, queue = set(start), deque(start)
        while queue:
            for other in steps[queue.popleft()]:
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
        return seen


@dataclass(frozen=True)
class Now:
    """What the planner needs to know of a run: by index, states, whether its rule decided it, and what was not chosen.

    `fresh`: it has not started, or was cancelled, so tasks that nothing waits for may still be in `none`.
    """

    states: tuple[str, ...]
    by_rule: tuple[bool, ...]
    not_chosen: Mapping[int, tuple[int, ...]]
    fresh: bool = False


@dataclass(frozen=True)
class Edit:
    """`changes`: index -> what `edit_run` makes of it. `cleared`: what will run again or wait for it, by index."""

    changes: dict[int, str]
    cleared: tuple[int, ...]
    run_state: str


def select(
    graph: Graph,
    now: Now,
    tasks: Iterable[int] | None,
    *,
    downstream: bool = False,
    upstream: bool = False,
    only_failed: bool = False,
) -> set[int]:
    """The tasks that a clear names: those given (None: all), with what is below or above, of these the failed ones."""
    chosen = set(range(len(graph.names))) if tasks is None else set(tasks)
    base = set(chosen)
    if downstream:
        chosen |= graph.reach(base, graph.downstream)
    if upstream:
        chosen |= graph.reach(base, graph.needs)
    if only_failed:
        chosen = {i for i in chosen if now.states[i] in FAILED}
    return {i for i in chosen if now.fresh or now.states[i] != "none"}


def plan_clear(graph: Graph, now: Now, selected: Iterable[int]) -> Edit:
    """The selected tasks go to `none` or `ready`, or are decided at once by their rules."""
    return _plan(graph, now, set(selected), {})


def plan_mark(graph: Graph, now: Now, marks: Mapping[int, str]) -> Edit:
    """The marked tasks are settled as success, failed or skipped; what followed from their old state opens again."""
    return _plan(graph, now, set(), dict(marks))


def _plan(graph: Graph, now: Now, cleared: set[int], marks: dict[int, str]) -> Edit:
    states: list[str] = list(now.states)
    for i in cleared:
        states[i] = "none"
    for i, state in marks.items():
        states[i] = state
    changed = cleared | set(marks)
    if not changed:  # a run that was cancelled stays as it is
        return Edit({}, (), _run_state(states))
    chosen_not: dict[int, set[int]] = {}
    for up, children in now.not_chosen.items():
        if up not in changed and states[up] == "success":
            for child in children:
                chosen_not.setdefault(child, set()).add(up)
    changes = {i: f"mark:{LETTER[s]}" for i, s in marks.items()}
    opened: set[int] = set(cleared)
    dirty = set(graph.order) if now.fresh else changed | {c for i in changed for c in graph.downstream[i]}
    for i in graph.order:
        if i not in dirty or i in marks:
            continue
        if now.fresh and states[i] == "cancelled":
            opened.add(i)  # the run goes on, with all that its cancel took away
        open_now = i in opened or states[i] == "none"
        derived = now.by_rule[i] and states[i] in ("skipped", "upstream_failed")
        if not open_now and not derived:
            continue
        verdict, packed = _verdict(graph, i, states, i in chosen_not)
        if not open_now and verdict == states[i]:
            continue  # it is what it is for other reasons, too
        if not open_now:
            opened.add(i)
        before = now.states[i]
        if verdict == "run":
            changes[i], states[i] = "ready", "ready"
        elif verdict == "wait":
            changes[i], states[i] = f"none:{packed}", "none"
        else:
            changes[i], states[i] = f"rule:{LETTER[verdict]}", verdict
        if states[i] != before or i in opened:
            dirty.update(graph.downstream[i])
    return Edit(changes, tuple(sorted(opened)), _run_state(states))


def _verdict(graph: Graph, i: int, states: Sequence[str], skipped: bool) -> tuple[str, int]:
    if skipped:
        return "skipped", 0
    counts = [0, 0, 0]
    for up in graph.needs[i]:
        if states[up] in SETTLED:
            counts[CLASS[states[up]]] += 1
    if not graph.needs[i]:
        return "run", 0
    packed = sum(n * unit for n, unit in zip(counts, UNIT, strict=True))
    return decide(graph.rules[i], len(graph.needs[i]), *counts), packed


def _run_state(states: Sequence[str]) -> str:
    return "running" if any(s not in SETTLED for s in states) else "ended"
