"""Killed at every step: for each call that a scheduler, a worker or a client makes in a scenario, it dies there, or only
its reply is lost; somebody else goes on, and everything ends as if nothing had been, with nothing left over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from redsched import client, editing
from redsched.keys import AttemptId
from redsched.store import shard
from redsched.store.scripts import all_scripts
from redsched.store.shard import Report
from tests.conftest import Server

from .harness import spec
from .steps import READS, Fate, Line, Send, Words, Worker, World, named, short

DATE = datetime(2026, 1, 5, tzinfo=UTC)
RUN = "20260105T000000Z"
MONTHLY = "0 0 1 * *"
FAN = {"root": {}, **{f"p{i}": {"needs": ["root"]} for i in range(3)}, "join": {"needs": ["p0", "p1", "p2"]}}


@dataclass(frozen=True)
class Scenario:
    """`play` prepares, says `world.test()`, does what is counted, and checks how it ended."""

    name: str
    victim: str
    play: Callable[[World], None]


SCENARIOS: dict[str, Scenario] = {}
LOADED: set[str] = set()
FATES: tuple[Fate, ...] = ("dead", "unanswered", "repeated")


def scenario(victim: str) -> Callable[[Callable[[World], None]], None]:
    def add(play: Callable[[World], None]) -> None:
        SCENARIOS[play.__name__] = Scenario(play.__name__, victim, play)

    return add


# Scenarios that begin with the death of a worker.
LOSSES = {"leader_takes_back_from_a_dead_worker", "worker_stops_what_is_not_wanted"}
RENEWS = {"control/beat", "pool/reap"}

# ---------------------------------------------------------------- what people ask for


def register(world: World, dag: str, tasks: dict[str, dict[str, Any]], **more: Any) -> None:
    world.person.register(spec(dag, tasks, **more))


def trigger(world: World, dag: str = "d", **more: Any) -> None:
    world.person.trigger(dag, date=DATE, **more)


def states(world: World, dag: str = "d") -> list[str]:
    found = world.recount().runs
    return [r.state for (d, _), r in sorted(found.items()) if d == dag]


def attempts(world: World, dag: str = "d") -> dict[tuple[int, int], int]:
    """(task, attempt) -> how often its body began."""
    parsed = [AttemptId.parse(a) for a in world.ran]
    return {(a.task, a.attempt): world.ran[str(a)] for a in parsed if a.dag == dag}


def forgotten(world: World) -> bool:
    """Whoever asked died, and nobody asked again: it has happened, or it has not."""
    return world.victim == "client" and world.line.fate == "dead" and world.line.struck


def ends(world: World, *wanted: str, dag: str = "d") -> None:
    """How the runs of the DAG have ended."""
    found = states(world, dag)
    assert found == list(wanted) or (forgotten(world) and found == list(wanted)[: len(found)]), found


# ---------------------------------------------------------------- the client


@scenario("client")
def client_registers(world: World) -> None:
    world.test()
    tasks = {"a": {}, "b": {"needs": ["a"], "pool": "gpu"}}
    up, down = (
        spec("d", tasks, pools={"gpu": 2}, schedule=MONTHLY),
        spec("e", {"x": {}}, schedule={"after": "d"}),
    )
    world.pools = ["default", "gpu"]
    world.wish(lambda c: c.register(up))
    world.wish(lambda c: c.register(down))
    register(world, "d", tasks, pools={"gpu": 2}, schedule=MONTHLY)
    register(world, "e", {"x": {}}, schedule={"after": "d"})
    assert [v["version"] for v in world.person.versions("d")] == [1]
    trigger(world)
    world.settle()
    assert states(world, "d") == states(world, "e") == ["success"]


@scenario("client")
def client_triggers(world: World) -> None:
    register(world, "d", FAN, params={"x": {"type": "integer"}})
    world.test()
    world.wish(lambda c: c.trigger("d", {"x": 1}, date=DATE))
    world.settle()
    ends(world, "success")


def long(worker: Worker, attempt: AttemptId) -> Report | None:
    """Task 0 goes on until it is stopped, at its first attempt."""
    return None if attempt.task == 0 and attempt.attempt == 1 else short(worker, attempt)


def under_way(world: World, **more: Any) -> None:
    """A run whose first task is running on a worker."""
    register(world, "d", {"a": {}, "b": {"needs": ["a"]}, "c": {"needs": ["b"]}, "other": {}}, **more)
    world.body = long
    trigger(world)
    world.settle(rests=0)
    assert list(world.worker.held) == [f"d/{RUN}/0/1"]


def stopped_if(world: World, done: bool) -> None:
    """What a person has taken back is stopped, before it ends by itself."""
    assert world.stopped == ([f"d/{RUN}/0/1"] if done else []), world.stopped


@scenario("client")
def client_cancels(world: World) -> None:
    under_way(world, on_failure="true")
    world.test()
    world.wish(lambda c: c.cancel("d", RUN))
    world.settle()
    found = states(world)
    assert found == ["cancelled"] or (forgotten(world) and found == ["success"])
    stopped_if(world, found == ["cancelled"])


@scenario("client")
def client_clears(world: World) -> None:
    under_way(world)
    world.test()
    world.wish(lambda c: c.clear("d", RUN, ["a"]))
    world.settle()
    ends(world, "success")
    again = any(a > 1 for t, a in attempts(world) if t == 0)
    stopped_if(world, again)
    assert forgotten(world) or again


@scenario("client")
def client_clears_much(world: World) -> None:
    """More than one script does at once: staged, and carried out by the owner in slices."""
    under_way(world)
    world.body = short
    world.worker.end_bodies()
    world.settle()
    world.test()
    world.wish(lambda c: c.clear("d", RUN))
    world.settle()
    ends(world, "success")


@scenario("client")
def client_marks(world: World) -> None:
    """The run ends by it: what follows it starts, and it is told."""
    under_way(world, on_success="true")
    register(world, "e", {"x": {}}, schedule={"after": "d"})
    world.test()
    world.wish(lambda c: c.mark("d", RUN, "success"))
    world.settle()
    ends(world, "success")
    assert states(world, "e") == ["success"]
    assert len(world.told) == 1


@scenario("client")
def client_pauses_and_resumes(world: World) -> None:
    register(world, "d", FAN)
    world.test()
    world.wish(lambda c: c.pause("d"))
    trigger(world)
    world.settle(rests=1)
    world.wish(lambda c: c.resume("d"))
    world.settle(rests=1)
    world.person.resume("d")
    world.settle()
    ends(world, "success")


@scenario("client")
def client_backfills(world: World) -> None:
    register(world, "d", {"a": {}}, schedule="0 0 * * *")
    trigger(world)
    world.settle()
    world.test()
    world.wish(lambda c: c.backfill("d", DATE, DATE.replace(day=7), max_active=1))
    world.settle()
    ends(world, "success", *["success"] * 2 * bool(world.person.backfills("d")))


@scenario("client")
def client_cancels_a_backfill(world: World) -> None:
    register(world, "d", {"a": {}}, schedule="0 0 * * *")
    world.body = long
    ident = world.person.backfill("d", DATE, DATE.replace(day=7), max_active=2)["backfill"]
    world.settle(rests=0)
    assert len(world.worker.held) == 2
    world.test()
    world.wish(lambda c: c.backfill_set(ident, "cancelled"))
    world.settle()
    if not forgotten(world):
        ends(world, "cancelled", "cancelled")


@scenario("client")
def client_resizes_a_pool(world: World) -> None:
    register(world, "d", {f"t{i}": {} for i in range(5)})
    world.person.set_pool("default", 1)
    trigger(world)
    world.scheduler.until_idle()
    world.test()
    world.wish(lambda c: c.set_pool("default", 3))
    world.wish(lambda c: c.set_pool("default", 2))
    world.settle()
    ends(world, "success")
    assert world.person.pool("default")["slots"] in ((1, 2, 3) if forgotten(world) else (2,))


@scenario("client")
def client_makes_and_deletes_a_pool(world: World) -> None:
    world.test()
    world.wish(lambda c: c.set_pool("gpu", 3))
    world.wish(lambda c: c.delete_pool("gpu") if "gpu" in c.store.pool.names() else None)
    world.settle()
    if not forgotten(world):
        assert "gpu" not in world.person.store.pool.names()


@scenario("client")
def client_deletes_a_dag(world: World) -> None:
    under_way(world)
    world.body = short
    register(world, "e", {"x": {}})
    register(world, "d", {"a": {}, "b": {"needs": ["a"]}}, schedule={"after": "e"})
    world.test()
    world.wish(lambda c: c.delete("d", force=True))
    if "d" in world.person.store.shard.all_dags():
        world.person.delete("d", force=True)
    world.settle()
    assert world.person.store.control.after() == {}
    assert "d" not in world.person.store.shard.all_dags()


# ---------------------------------------------------------------- the scheduler


@scenario("scheduler")
def scheduler_creates_and_joins(world: World) -> None:
    parents: dict[str, dict[str, Any]] = {f"p{i}": {} for i in range(20)}
    register(world, "d", {**parents, "join": {"needs": list(parents)}}, max_active_tasks=8)
    trigger(world)
    world.test()
    world.settle()
    ends(world, "success")
    assert len(attempts(world)) == 21


@scenario("scheduler")
def scheduler_retries(world: World) -> None:
    """With and without a pause; to success, and until it fails; a hook hears of it."""
    tasks: dict[str, dict[str, Any]] = {
        "now": {"retries": 1},
        "later": {"retries": 1, "retry_delay": "1m"},
        "never": {"retries": 1, "allow_failure": True},
        "lost": {"needs": ["never"]},
        "end": {"needs": ["now", "later"]},
    }
    register(world, "d", tasks, on_success="true")
    names = world.person.store.shard.plan("d", world.person.versions("d")[0]["digest"])[1]

    def body(worker: Worker, attempt: AttemptId) -> Report | None:
        fails = attempt.attempt == 1 or names[attempt.task] == "never"
        return Report(str(attempt), "failed" if fails and names[attempt.task] != "end" else "success", 1)

    world.body = body
    trigger(world)
    world.test()
    world.settle()
    ends(world, "success")
    assert len(set(world.told)) == 1


@scenario("scheduler")
def scheduler_stops_what_is_cancelled(world: World) -> None:
    under_way(world)
    world.person.store.shard.cancel_run("d", RUN)  # and the client died before it told the pool
    world.test()
    world.settle()
    ends(world, "cancelled")
    stopped_if(world, True)


@scenario("scheduler")
def scheduler_carries_out_a_clear(world: World) -> None:
    under_way(world)
    world.test()
    world.person.clear("d", RUN)
    world.settle()
    ends(world, "success")
    stopped_if(world, True)


@scenario("scheduler")
def scheduler_ends_what_takes_too_long(world: World) -> None:
    """An attempt whose worker does not stop it, a run that is late, and a run that has no more time."""
    late = {"deadline": "1h", "on_deadline": "true"}
    register(world, "d", {"a": {"timeout": "1m", "retries": 1}, "b": {"needs": ["a"]}}, **late)
    register(world, "e", {"a": {}, "b": {"needs": ["a"]}}, run_timeout="1h", on_failure="true")
    world.body = long
    for dag in "de":
        trigger(world, dag)
    world.settle(rests=0)
    assert len(world.worker.held) == 2
    world.test()
    world.settle()
    assert (states(world, "d"), states(world, "e")) == (["success"], ["failed"])
    assert sorted(world.stopped) == [f"{dag}/{RUN}/0/1" for dag in "de"]
    assert {m.split("/")[2] for m in world.told} == {"deadline", "failure"}


@scenario("scheduler")
def scheduler_keeps_to_limits(world: World) -> None:
    """Places under a limit, a concurrency key and a narrow pool; tasks that were not chosen."""
    one = {"max_active": 1, "concurrency_key": "{{ params.x }}"}
    tasks = {"choice": {}, **{f"t{i}": {"needs": ["choice"], "pool_slots": 2} for i in range(4)}, "k": one}
    register(world, "d", tasks, params={"x": {"type": "string", "default": "v"}}, max_active_tasks=3)
    world.person.set_pool("default", 3)

    def body(worker: Worker, attempt: AttemptId) -> Report | None:
        return Report(str(attempt), "success", 1, skip=(3, 4) if attempt.task == 0 else ())

    world.body = body
    for day in (5, 6):
        world.person.trigger("d", date=DATE.replace(day=day))
    world.test()
    world.settle()
    ends(world, "success", "success")


@scenario("scheduler")
def scheduler_backfills(world: World) -> None:
    register(world, "d", {"a": {"retries": 0}}, schedule="0 0 * * *")
    fails = [True]
    world.body = lambda worker, attempt: Report(str(attempt), "failed" if fails else "success", 1)
    trigger(world)
    world.settle()
    ends(world, "failed")
    fails.clear()
    world.person.backfill("d", DATE, DATE.replace(day=7), max_active=2, on_existing="failed")
    world.test()
    world.settle()
    ends(world, *["success"] * 3)


@scenario("scheduler")
def scheduler_fires_slots(world: World) -> None:
    register(world, "d", {"a": {}}, schedule=MONTHLY, catchup=True, max_active_runs=1)
    overdue(world)
    world.test()
    world.settle()
    ends(world, *["success"] * 3)


def overdue(world: World) -> None:
    """As if nobody had been there since the third last first day of a month."""
    now = datetime.fromtimestamp(world.now() / 1000, UTC)
    month = now.year * 12 + now.month - 1 - 2
    slot = int(datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC).timestamp() * 1000)
    prefix = world.person.store.shard.prefix("d")
    world.admin.hset(f"{prefix}dag:d", "slot", slot)
    world.admin.zadd(f"{prefix}slots", {"d": slot})


@scenario("scheduler")
def scheduler_starts_followers(world: World) -> None:
    register(world, "d", {"a": {}})
    register(world, "e", {"x": {}}, schedule={"after": "d"})
    register(world, "f", {"y": {}}, schedule={"after": "e"})
    trigger(world)
    world.test()
    world.settle()
    assert [states(world, d) for d in "def"] == [["success"]] * 3


@scenario("scheduler")
def scheduler_takes_over(world: World) -> None:
    """The one before died in the middle: a part is queued, a part ready, a part done, a run is not packed yet."""
    register(world, "d", FAN, max_active_tasks=2)
    trigger(world)
    world.scheduler.until_idle()
    world.worker.turn()
    world.person.trigger("d", date=DATE.replace(day=6))
    world.bury("scheduler")
    world.test()
    world.settle()
    ends(world, "success", "success")


@scenario("scheduler")
def scheduler_leaves(world: World) -> None:
    register(world, "d", FAN)
    trigger(world)
    world.test()
    world.alive("scheduler", lambda: world.scheduler.until_idle())
    world.alive("scheduler", lambda: world.scheduler._hand_over())
    world.bury("scheduler")
    world.settle()
    ends(world, "success")


@scenario("scheduler")
def leader_takes_back_from_a_dead_worker(world: World) -> None:
    """It held a grant, had been given hints that it never started, and had ended one that it never reported."""
    register(world, "d", {f"t{i}": {} for i in range(4)})
    trigger(world)
    world.scheduler.until_idle()
    dead = world.worker
    dead.store.pool.read(dead.name, ["default"], 2, 0)
    (hint,) = dead.store.pool.read(dead.name, ["default"], 1, 0)
    dead.store.pool.start(dead.name, "n", [hint])
    world.bury("worker")
    world.test()
    world.settle()
    ends(world, "success")


@scenario("scheduler")
def scheduler_is_refused_by_a_pool(world: World) -> None:
    """After a failover that forgot the last elections: a pool has seen higher fences, of the leader and of a shard."""
    register(world, "d", FAN)
    trigger(world)
    world.scheduler.until_idle()
    seen = {"fence:leader": 3, "fence:shard0": 3, "fence:shard1": 3}
    world.admin.hset(world.keys.pool("default") + "meta", mapping=seen)
    world.test()
    world.settle(rests=5)
    ends(world, "success")


# ---------------------------------------------------------------- the worker


@scenario("worker")
def worker_runs(world: World) -> None:
    """A result, a log, a claim that only one attempt gets, and a long body that is shown as running."""
    register(world, "d", {**FAN, "slow": {}})

    def body(worker: Worker, attempt: AttemptId) -> Report | None:
        if attempt.task == 0 and worker.say(worker.store.shard.once, str(attempt), "pay", worker.name):
            world.charged.append(str(attempt))
        for offset in (0, 3):
            worker.say(worker.store.shard.log_write, str(attempt), offset, b"abc")
        worker.say(worker.store.shard.inputs, "d", attempt.run, {"root": 4})
        return None if attempt.task == 5 else Report(str(attempt), "success", 1, result='{"x":1}')

    world.body = body
    trigger(world)
    world.test()
    world.settle()
    ends(world, "success")
    assert len(world.charged) <= 1, world.charged
    assert world.charged or world.line.struck


@scenario("worker")
def worker_stops_what_is_not_wanted(world: World) -> None:
    under_way(world)
    world.bury("worker")
    world.later()
    world.body = lambda worker, attempt: None if attempt[2:4] == (0, 2) else short(worker, attempt)
    world.test()
    world.settle(rests=0)
    world.person.clear("d", RUN, ["a"])
    world.settle()
    ends(world, "success")


@scenario("worker")
def worker_gives_back_and_leaves(world: World) -> None:
    register(world, "d", FAN)
    trigger(world)
    world.scheduler.until_idle()
    world.give_back = True
    world.test()
    world.alive("worker", lambda: world.worker.turn())
    world.give_back = False
    world.alive("worker", lambda: world.worker.leave())
    world.new_worker()
    world.settle()
    ends(world, "success")


@scenario("worker")
def worker_finds_no_stream(world: World) -> None:
    register(world, "d", FAN)
    trigger(world)
    world.scheduler.until_idle()
    world.admin.delete(world.keys.pool("default") + "stream")
    world.test()
    world.settle()
    ends(world, "success")


# ---------------------------------------------------------------- killed at every step


@pytest.fixture
def url(_session_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database of its own, with all scripts loaded; clients do not sleep, and edits are big from four tasks on."""
    url = _session_server.url.rpartition("/")[0] + "/9"
    with Redis.from_url(url) as admin:
        admin.flushdb()
        if url not in LOADED:
            for script in all_scripts().values():
                admin.function_load(script.library, replace=True)
            LOADED.add(url)
    monkeypatch.setattr(shard, "EDIT_AT_ONCE", 3)
    for module in (client, editing):
        clock = SimpleNamespace(time=module.time.time, monotonic=module.time.monotonic, sleep=lambda s: None)
        monkeypatch.setattr(module, "time", clock)
    return url


@pytest.fixture
def play(url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Line]:
    def one(
        chosen: Scenario, fate: Fate = "", at: int = 0, look: Callable[[World], None] | None = None
    ) -> Line:
        line = Line(fate, at)
        world = World(url, chosen.victim, line)
        if look:
            look(world)
        # Whoever waits for the owner to carry out an edit gives it the time.
        monkeypatch.setattr(
            editing.time, "sleep", lambda s: world.alive("scheduler", world.scheduler.until_idle)
        )
        try:
            chosen.play(world)
            found = world.recount()
            found.ran(world.ran)
            if line.fate in ("", "repeated") and chosen.name not in LOSSES:
                found.no_losses()
            assert not found.trouble, "\n".join(found.trouble)
        finally:
            world.end()
        return line

    return one


def steps(victim: str, calls: list[str], fate: Fate) -> Iterator[int]:
    """At which calls to strike.

    Not at reads, for a killed process: the server is as it was at the call before. Nor with `dead` for a scheduler: between a
    reply and the next call it does nothing, so that is `unanswered`. Reads and what only renews: where the calls before differ.
    """
    seen = set()
    for at, call in enumerate(calls, 1):
        around = tuple(calls[max(0, at - 3) : at])
        if (call in READS and fate != "repeated") or (call in READS | RENEWS and around in seen):
            continue
        seen.add(around)
        if (victim, fate) != ("scheduler", "dead"):
            yield at


@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_every_step(play: Callable[..., Line], name: str) -> None:
    chosen, wrong, played = SCENARIOS[name], [], 0
    calls = play(chosen).calls
    assert play(chosen).calls == calls, "each play makes the same calls"
    for fate in FATES:
        for at in steps(chosen.victim, calls, fate):
            played += 1
            try:
                line = play(chosen, fate, at)
                assert line.calls[:at] == calls[:at], "another play than the one that was counted"
            except AssertionError as error:
                wrong.append(f"{fate} at call {at} of {len(calls)} ({calls[at - 1]}): {str(error)[:500]}")
    if wrong:
        pytest.fail(f"{len(wrong)} of {played} plays\n" + "\n".join(wrong[:6]), pytrace=False)


# ---------------------------------------------------------------- said twice

# Scripts whose second answer may be another one, and why that harms nobody.
NEWS = "whether it was news: for a message to a person, nothing is decided by it"
COUNT = "how much it found to do: for a log line, nothing is decided by it"
OUTBOX = (
    "what it made or found is in the outbox, in `ended` and in `stops`, where whoever loses a reply looks"
)
OTHER_ANSWER = {
    "shard/advance": OUTBOX,
    "shard/fire": OUTBOX,
    "shard/backfill_step": OUTBOX,
    "shard/cancel_run": "ENDED, cancelled: the client takes that for its own doing",
    "shard/delete_dag": "NOTFOUND: the client takes that for its own doing",
    "pool/delete": "NOTFOUND: the client takes that for its own doing",
    **dict.fromkeys(
        ("shard/register", "shard/pause", "shard/edit_run", "shard/unpack_run", "pool/configure"), NEWS
    ),
    **dict.fromkeys(("shard/pack", "pool/release", "pool/give_back", "pool/reaped", "pool/revive"), COUNT),
    **dict.fromkeys(("shard/release", "control/resign"), COUNT),
}
# These tell Redis' time, or that the inbox is applied up to it.
TELL_TIME = {"control/beat", "shard/due", "shard/ready"}
# Scripts that may change something more: it comes into the inbox twice, and is applied once (I4).
SAID_TWICE = {"shard/report": "inbox"}
# Moments up to which something holds: they are the later, the later that is said.
MOMENTS = {"schedulers", "workers", "lease"}
# Not said in any scenario: they change the number of shards of an installation that stands still.
# tests/engine/test_resize.py kills it at every step, and says it again.
UNPLAYED = {"control/resize", "control/resized", "shard/adopt", "shard/shed", "shard/close"}


def settled(dump: dict[str, Any]) -> dict[str, Any]:
    """Without the moments up to which something holds."""
    found = {}
    for key, value in dump.items():
        name = key.partition("}:")[2]
        if name in MOMENTS:
            value = {member for member, _ in value}
        elif name == "meta":
            value = {k: v for k, v in value.items() if k not in (b"swept", b"grace")}
        found[name] = value
    return found


class Twice:
    """Says each script call twice. Notes which scripts were said, and which answered or did something else then."""

    def __init__(self) -> None:
        self.said: set[str] = set()
        self.answered: set[str] = set()
        self.changed: list[str] = []

    def look(self, world: World) -> None:
        def watch(words: Words, send: Send) -> Any:
            if words[0] != "FCALL":
                return send()
            name, cell = named(words), words[3].partition("}:")[0] + "}:"
            first = send()
            before = settled(world.dump(cell))
            try:
                second = send()
            except ResponseError as error:
                second = error
            self._note(name, first, second, before, settled(world.dump(cell)))
            return first

        world.onlooker = watch

    def _note(
        self, name: str, first: Any, second: Any, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        self.said.add(name)
        if first != second:
            self.answered.add(name)
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) != after.get(key) and key != SAID_TWICE.get(name):
                self.changed.append(f"{name}: {key}: {before.get(key)} -> {after.get(key)}")


def test_each_script_said_twice_is_said_once(play: Callable[..., Line]) -> None:
    """After every call of all scenarios: again with the same arguments; and all ends as it does without."""
    twice = Twice()
    for chosen in SCENARIOS.values():
        play(chosen, look=twice.look)
    assert not twice.changed, "\n".join(twice.changed[:5])
    assert twice.answered - TELL_TIME == set(OTHER_ANSWER)
    unsaid = {name for name in all_scripts() if "audit" not in name} - twice.said
    assert unsaid <= UNPLAYED, "a script without a scenario: make one, or say why there is none"
