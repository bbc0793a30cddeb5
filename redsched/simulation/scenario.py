"""What a seed simulates: DAGs of all shapes and rules, pools with few slots, and a person who triggers, clears, cancels,
pauses, backfills and changes things meanwhile. Each seed leaves some of all that out, so that the rest meets more often.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

from redsched.client import Client
from redsched.definition.model import DagSpec
from redsched.settings import Settings
from redsched.simulation.bodies import Character
from redsched.simulation.processes import Act
from redsched.simulation.world import EPOCH_MS, MANY, NONE, SOME, Faults
from redsched.states import TRIGGER_RULES

ACTS_MS, CLOSING_MS, LONGEST_MS = (
    14_000,
    18_000,
    25_000,
)  # acts are done, all is ended, faults happen until then


@dataclass
class Scenario:
    """`faults_ms`: so long faults happen; then everything has to come to its end."""

    seed: int
    settings: Settings
    faults: Faults
    faults_ms: int
    specs: dict[str, DagSpec]
    acts: list[tuple[int, str, Act]]
    character: Character
    schedulers: int
    workers: list[tuple[tuple[str, ...], int]]
    audit_every: int
    closing: int = 0  # the act with which the person begins to end everything
    edited: set[tuple[str, str]] = field(default_factory=set)  # runs whose history is not the plain one


def draw(seed: int, faults: str | None = None) -> Scenario:
    """The scenario of a seed; `faults` none, some or many instead of what the seed says."""
    rnd = Random(seed)
    settings = Settings(
        redis="unix:///simulation",
        namespace="sim",
        shards=rnd.choice((1, 1, 2, 3)),
        lease_ms=rnd.choice((3000, 6000, 10_000)),
        worker_lease_ms=rnd.choice((5000, 10_000)),
    )
    slots = {"default": rnd.choice((2, 4, 128))}
    if rnd.random() < 0.6:
        slots["narrow"] = rnd.choice((1, 2, 3))
    names = [f"d{i}" for i in range(rnd.choice((1, 2, 3)))]
    specs = {name: _spec(rnd, name, slots) for name in names}
    scenario = Scenario(
        seed=seed,
        settings=settings,
        faults=_faults(rnd, faults),
        faults_ms=rnd.choice((8_000, 18_000, LONGEST_MS)),
        specs=specs,
        acts=[],
        character=_character(rnd),
        schedulers=rnd.choice((1, 2, 2, 3)),
        workers=[],
        audit_every=5 if rnd.random() < 0.05 else 60,
    )
    for _ in range(rnd.choice((1, 2, 2, 3))):
        scenario.workers.append((tuple(slots), rnd.choice((1, 2, 6))))
    _acts(rnd, scenario, slots)
    return scenario


def _faults(rnd: Random, wanted: str | None) -> Faults:
    word = wanted or rnd.choice(("none", "some", "some", "many"))
    rates = {"none": replace(NONE, delay=0.2), "some": SOME, "many": MANY}[word]
    left_out = {kind: 0.0 for kind in Faults.KINDS if rnd.random() < 0.4}
    return replace(rates, **left_out)


def _character(rnd: Random) -> Character:
    return Character(
        fail=rnd.choice((0.0, 0.1, 0.3)),
        skip=rnd.choice((0.0, 0.0, 0.15)),
        branch=rnd.choice((0.0, 0.0, 0.2)),
        durations=rnd.choice(((5,), (10, 300), (50, 700, 2500), (20, 20, 20, 8000), (5, 5, 500, 12_000))),
    )


def _spec(rnd: Random, name: str, slots: dict[str, int]) -> DagSpec:
    tasks: dict[str, dict[str, Any]] = {}
    rules = rnd.choice((["all_success"], list(TRIGGER_RULES), list(TRIGGER_RULES)))
    for i in range(rnd.choice((1, 3, 6, 9, 12))):
        above = list(tasks)
        count = min(len(above), rnd.choice((0, 1, 1, 2, 3)))
        task: dict[str, Any] = {"run": "true", "needs": sorted(rnd.sample(above, count), key=above.index)}
        task["trigger_rule"] = rnd.choice(rules)
        if rnd.random() < 0.3:
            task |= {"retries": rnd.choice((1, 2)), "retry_delay": rnd.choice((0, "200ms", "2s"))}
        if rnd.random() < 0.15:
            task["timeout"] = rnd.choice(("400ms", "3s"))
        if rnd.random() < 0.1:
            task["allow_failure"] = True
        if rnd.random() < 0.15:
            task["max_active"] = 1
        if rnd.random() < 0.2:
            task["priority"] = rnd.choice((-5, 5))
        task["pool"] = rnd.choice(list(slots))
        if rnd.random() < 0.1:
            task["pool_slots"] = min(2, slots[task["pool"]])
        tasks[f"t{i}"] = task
    more: dict[str, Any] = {
        "max_active_runs": rnd.choice((1, 2, 16)),
        "max_active_tasks": rnd.choice((1, 3, 64)),
    }
    if rnd.random() < 0.35:
        more |= {
            "schedule": rnd.choice(("* * * * *", {"every": "20s"}, {"every": "7s"})),
            "catchup": rnd.random() < 0.4,
            "overlap": rnd.choice(("queue", "skip", "cancel_running")),
        }
    elif name != "d0" and rnd.random() < 0.15:
        more["schedule"] = {"after": "d0"}
    if rnd.random() < 0.1:
        more["run_timeout"] = rnd.choice(("5s", "40s"))
    if rnd.random() < 0.15:
        more |= {"deadline": "4s", "on_failure": "true", "on_deadline": "true"}
    return DagSpec.model_validate({"dag": name, "tasks": tasks, **more})


# ---- what the person does


def _acts(rnd: Random, scenario: Scenario, slots: dict[str, int]) -> None:
    acts = scenario.acts
    for pool, count in slots.items():
        acts.append((EPOCH_MS, f"set pool {pool} to {count}", _set_pool(pool, count)))
    for name, spec in scenario.specs.items():
        acts.append((EPOCH_MS, f"register {name}", _register(spec)))
    triggers = [_trigger_act(rnd, scenario, i) for i in range(rnd.choice((1, 2, 4)))]
    kinds = rnd.sample(list(ACTS), rnd.choice((0, 1, 2, 4)))
    drawn = [ACTS[kind](rnd, scenario) for kind in kinds for _ in range(rnd.choice((1, 2)))]
    later = [(EPOCH_MS + 500 + rnd.randrange(ACTS_MS), what, act) for what, act in drawn]
    acts += sorted([*triggers, *later], key=lambda a: a[0])
    end, scenario.closing = EPOCH_MS + CLOSING_MS, len(acts)
    for pool, count in slots.items():
        acts.append((end, f"set pool {pool} to {count}", _set_pool(pool, count)))
    for name in scenario.specs:
        acts.append((end, f"resume {name}", _resume(name)))
        acts.append((end, f"end the schedule of {name}", _no_schedule(scenario.specs[name])))


def _trigger_act(rnd: Random, scenario: Scenario, i: int) -> tuple[int, str, Act]:
    dag, run = rnd.choice(list(scenario.specs)), f"r{i}"
    at = EPOCH_MS + rnd.choice((0, 0, rnd.randrange(8000)))
    return at, f"trigger {dag} {run}", lambda client, _: client.trigger(dag, run=run)


def _set_pool(pool: str, slots: int) -> Act:
    return lambda client, _: client.set_pool(pool, slots)


def _register(spec: DagSpec) -> Act:
    return lambda client, _: client.register(spec)


def _resume(dag: str) -> Act:
    def act(client: Client, rnd: Random) -> None:
        client.resume(dag)
        for row in client.backfills(dag):
            if row["state"] == "paused":
                client.backfill_set(row["backfill"], "running")

    return act


def _no_schedule(spec: DagSpec) -> Act:
    plain = DagSpec.model_validate({**spec.written(), "schedule": None})
    return lambda client, _: client.register(plain)


def _some_run(client: Client, rnd: Random, dag: str) -> str | None:
    rows = client.runs(dag, limit=20)
    return rnd.choice(rows)["run"] if rows else None


def _clear(rnd: Random, scenario: Scenario) -> tuple[str, Act]:
    dag = rnd.choice(list(scenario.specs))
    names = list(scenario.specs[dag].tasks)
    tasks = rnd.choice((None, [rnd.choice(names)]))
    words = {w: rnd.random() < 0.4 for w in ("downstream", "upstream", "only_failed")}

    def act(client: Client, rnd: Random) -> None:
        if run := _some_run(client, rnd, dag):
            scenario.edited.add((dag, run))
            client.clear(dag, run, tasks, **words)

    return f"clear in {dag}", act


def _mark(rnd: Random, scenario: Scenario) -> tuple[str, Act]:
    dag = rnd.choice(list(scenario.specs))
    task = rnd.choice((None, *scenario.specs[dag].tasks))
    state = rnd.choice(("success", "failed", "skipped"))

    def act(client: Client, rnd: Random) -> None:
        if run := _some_run(client, rnd, dag):
            scenario.edited.add((dag, run))
            client.mark(dag, run, state, task)

    return f"mark in {dag} as {state}", act


def _cancel(rnd: Random, scenario: Scenario) -> tuple[str, Act]:
    dag = rnd.choice(list(scenario.specs))

    def act(client: Client, rnd: Random) -> None:
        if run := _some_run(client, rnd, dag):
            client.cancel(dag, run)

    return f"cancel in {dag}", act


def _pause(rnd: Random, scenario: Scenario) -> tuple[str, Act]:
    dag, paused = rnd.choice(list(scenario.specs)), rnd.random() < 0.6
    return (
        f"{'pause' if paused else 'resume'} {dag}",
        lambda client, _: client.pause(dag) if paused else client.resume(dag),
    )


def _backfill(rnd: Random, scenario: Scenario) -> tuple[str, Act]:
    dag, days = rnd.choice(list(scenario.specs)), rnd.choice((1, 3, 5))
    first = datetime.fromtimestamp(EPOCH_MS / 1000, UTC).replace(year=2025)
    words: dict[str, Any] = {
        "max_active": rnd.choice((1, 2)),
        "order": rnd.choice(("oldest", "newest")),
        "on_existing": rnd.choice(("skip", "failed", "all")),
        "every_ms": 86_400_000,
    }

    def act(client: Client, _: Random) -> None:
        client.backfill(dag, first, first.replace(day=days), **words)

    return f"backfill {dag}, {days} days", act


def _set_backfill(rnd: Random, scenario: Scenario) -> tuple[str, Act]:
    state = rnd.choice(("paused", "running", "cancelled"))

    def act(client: Client, _: Random) -> None:
        for row in client.backfills():
            if row["state"] in ("running", "paused"):
                client.backfill_set(row["backfill"], state)

    return f"backfills {state}", act


def _resize(rnd: Random, scenario: Scenario) -> tuple[str, Act]:
    pool, slots = rnd.choice(("default", "narrow")), rnd.choice((0, 1, 2, 5))

    def act(client: Client, _: Random) -> None:
        if pool in client.store.pool.names():
            client.set_pool(pool, slots)

    return f"set pool {pool} to {slots}", act


def _new_version(rnd: Random, scenario: Scenario) -> tuple[str, Act]:
    """Another version with the same tasks: what is running goes on with its own."""
    dag = rnd.choice(list(scenario.specs))
    written = scenario.specs[dag].written()
    spec = DagSpec.model_validate(
        {**written, "description": "new", "max_active_tasks": rnd.choice((1, 2, 64))}
    )
    return f"register a new version of {dag}", _register(spec)


ACTS: Final = {
    "clear": _clear,
    "mark": _mark,
    "cancel": _cancel,
    "pause": _pause,
    "backfill": _backfill,
    "set_backfill": _set_backfill,
    "resize": _resize,
    "new_version": _new_version,
}
