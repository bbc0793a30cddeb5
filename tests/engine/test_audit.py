"""The audit: silent on what is well, whatever state it is in; names each damage, repairs it, and the run goes on to its end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from redsched import auditing
from redsched.auditing import Findings
from redsched.errors import Fenced, RedschedError
from redsched.keys import AttemptId
from redsched.scheduler import audit as background
from redsched.scheduler.audit import audit
from redsched.store.connect import allowed
from redsched.store.pool import Hint
from redsched.store.shard import Report

from .harness import DAG20, Body, Engine, success


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between looks are steps of the scheduler here."""
    monkeypatch.setattr(auditing, "CONFIRM_S", 0.0)
    for pause in ("ASK_EVERY_S", "IDLE_ASK_S", "IDLE_S"):
        monkeypatch.setattr(background, pause, 0.0)


def look(engine: Engine, *, fix: bool = False) -> Findings:
    return audit(engine.store, fix=fix, sleep=lambda _: engine.step())


def clean(engine: Engine) -> None:
    found = look(engine)
    assert not found.differences, [str(d) for d in found.differences]
    assert not found.unsure


def test_a_run_is_clean_at_each_step(engine: Engine) -> None:
    engine.register("d", DAG20)
    clean(engine)
    engine.client.trigger("d")
    clean(engine)
    while engine.step() or engine.work(count=3):
        clean(engine)
    clean(engine)
    assert engine.client.run("d", "latest")["state"] == "success"


# ---- silent on what is well

RULES = (
    "all_success",
    "all_done",
    "one_success",
    "one_failed",
    "none_failed",
    "all_failed",
    "one_done",
    "none_skipped",
)


def some_dag(rnd: random.Random) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    tasks: dict[str, dict[str, Any]] = {}
    for i in range(rnd.randint(2, 9)):
        task: dict[str, Any] = {"needs": rnd.sample(sorted(tasks), min(len(tasks), rnd.randint(0, 3)))}
        if task["needs"]:
            task["trigger_rule"] = rnd.choice(RULES)
        if rnd.random() < 0.3:
            task |= {"retries": 1, "retry_delay": rnd.choice([0, "1ms", "1h"])}
        if rnd.random() < 0.2:
            task["timeout"] = "1h"
        if rnd.random() < 0.2:
            task["max_active"] = 1
        if rnd.random() < 0.1:
            task["concurrency_key"] = "k"
        if rnd.random() < 0.2:
            task["allow_failure"] = True
        task["priority"] = rnd.randint(-2, 2)
        tasks[f"t{i}"] = task
    more = {"max_active_runs": rnd.randint(1, 3), "max_active_tasks": rnd.choice([1, 2, 16])}
    return tasks, {**more, **rnd.choice([{}, {"run_timeout": "1h"}, {"deadline": "1h", "team": "x"}])}


class Life:
    """Random things that happen to some DAGs."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine, self.rnd = engine, random.Random(seed)
        self.dags: dict[str, dict[str, dict[str, Any]]] = {}
        for name in ("a", "b"):
            self.dags[name], more = some_dag(self.rnd)
            engine.register(name, self.dags[name], schedule="@daily", start="2026-01-01", **more)
        engine.client.set_pool("default", 3)

    def body(self, attempt: AttemptId, payload: str) -> Report | None:
        if (chance := self.rnd.random()) < 0.15:
            return None
        if chance < 0.2:
            self.engine.store.shard.running(1, [(str(attempt), 1)])
            return None
        outcome = self.rnd.choice(["success", "success", "success", "failed", "skipped"])
        below = [int(n[1:]) for n, t in self.dags[attempt.dag].items() if f"t{attempt.task}" in t["needs"]]
        chosen = (
            tuple(self.rnd.sample(below, self.rnd.randint(0, len(below)))) if self.rnd.random() < 0.2 else ()
        )
        return Report(str(attempt), outcome, 1, skip=chosen)  # type: ignore[arg-type]

    def happen(self) -> None:
        client, dag = self.engine.client, self.rnd.choice(sorted(self.dags))
        runs = [r["run"] for r in client.runs(dag)]
        run = self.rnd.choice(runs) if runs else ""
        task = self.rnd.choice(sorted(self.dags[dag]))
        acts: list[Callable[[], Any]] = [
            *[lambda: self.engine.work(self.body, count=self.rnd.randint(1, 4))] * 6,
            *[self.engine.step] * 4,
            *[lambda: client.trigger(dag)] * 3,
            lambda: client.cancel(dag, run),
            lambda: client.clear(dag, run, [task], downstream=self.rnd.random() < 0.5),
            lambda: client.clear(dag, run, only_failed=True),
            lambda: client.mark(dag, run, self.rnd.choice(["success", "failed", "skipped"]), task),
            lambda: (client.pause if self.rnd.random() < 0.4 else client.resume)(dag),
            lambda: client.set_pool("default", self.rnd.randint(1, 5)),
            self.lose,
        ]
        try:
            self.rnd.choice(acts)()
        except RedschedError:
            pass  # there is no such run, or it has ended

    def lose(self) -> None:
        """A worker falls silent."""
        store = self.engine.store
        key = store.keys.pool("default") + "lease"
        for id in store.client.zrange(key, 0, 0):
            store.client.zadd(key, {id: 1})


@pytest.mark.parametrize("seed", range(12))
def test_random_runs_in_random_states_are_clean(engine: Engine, seed: int) -> None:
    life = Life(engine, seed)
    for step in range(80):
        life.happen()
        if step % 4 == 0:
            clean(engine)
    for dag in life.dags:
        engine.client.resume(dag)
    clean(engine)


def test_a_dag_that_was_deleted_and_made_again_is_clean(engine: Engine) -> None:
    """Its attempts carry a generation."""
    for _ in range(3):
        engine.register("d", FAN, schedule="@daily", run_timeout="1h", deadline="1h")
        engine.client.trigger("d", run="r")
        engine.step()
        clean(engine)
        engine.work(count=1)
        clean(engine)
        engine.client.delete("d", force=True)
        clean(engine)


def test_a_big_clear_is_clean_on_its_way(engine: Engine) -> None:
    engine.register("d", {"a": {}, **{f"t{i}": {"needs": ["a"]} for i in range(1100)}}, max_active_tasks=2000)
    engine.client.trigger("d", run="r")
    engine.client.set_pool("default", 2000)
    engine.settle()
    clearing = threading.Thread(target=engine.client.clear, args=("d", "r"))
    clearing.start()
    while clearing.is_alive():
        assert not look(engine).differences
    clean(engine)
    engine.settle()
    assert engine.client.run("d", "r")["state"] == "success"
    clean(engine)


# ---- each damage is named and repaired, and the run goes on to its end


class Site:
    """One DAG `d` with a run `r`, and the keys of its cells for whoever wants to damage them."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.redis = engine, engine.store.client
        self.shard, self.pool = engine.store.shard.prefix("d"), engine.store.keys.pool("default")
        self.run = f"{self.shard}run:d:r"

    def begin(self, tasks: dict[str, dict[str, Any]], **more: Any) -> None:
        """Registered, triggered, and its first tasks are at their pool."""
        self.engine.register("d", tasks, **more)
        self.engine.client.trigger("d", run="r")
        self.engine.step()

    def grant(self) -> Hint:
        (hint,) = self.engine.take(1)
        self.engine.grant([hint])
        return hint


FAN: dict[str, dict[str, Any]] = {
    "a": {},
    "b": {},
    "c": {"needs": ["a", "b"]},
    "d": {"needs": ["a", "b"], "trigger_rule": "all_done"},
}
RETRY = {"a": {"retries": 1, "retry_delay": "10ms"}, "b": {"needs": ["a"]}}

Damage = tuple[str, dict[str, dict[str, Any]], dict[str, Any], Callable[[Site], Any]]


def fail_once(s: Site) -> None:
    s.engine.work(lambda a, _: Report(str(a), "failed", 1))
    shard = s.engine.store.shard.of("d")
    s.engine.store.shard.advance(shard, s.engine.scheduler.ownership.tokens[shard], 100)


def then(*acts: Callable[[Site], Any]) -> Callable[[Site], Any]:
    return lambda site: [act(site) for act in acts]


def finish_one(s: Site) -> None:
    s.engine.work(count=1)
    s.engine.step()


def run_one(s: Site) -> None:
    """One is running; its worker has said so."""
    hint = s.grant()
    s.engine.store.shard.running(1, [(hint.attempt_id, 1)])
    s.engine.step()
    s.engine.store.pool.give_back("w1", f"n{s.engine._nonce}", [hint])


def second_run(s: Site) -> None:
    s.engine.client.trigger("d", run="r2")
    s.engine.step()


def ended(s: Site) -> None:
    s.engine.scheduler._due["pack"] = float("inf")
    s.engine.settle()
    s.redis.delete(s.shard + "ended")


def backfill(s: Site) -> None:
    s.engine.client.backfill("d", datetime(2026, 1, 1), datetime(2026, 1, 3), max_active=1)  # noqa: DTZ001
    s.engine.step()


DAMAGES: dict[str, Damage] = {
    "left too high": ("run:d:r", FAN, {}, lambda s: s.redis.hincrby(s.run, "left", 3)),
    "left too low": ("run:d:r", FAN, {}, lambda s: s.redis.hincrby(s.run, "left", -2)),
    "failed": ("run:d:r", FAN, {}, lambda s: s.redis.hset(s.run, "failed", 1)),
    "pending": ("run:d:r", FAN, {}, lambda s: s.redis.hset(s.run, "pending", 1)),
    "reopen": ("run:d:r", FAN, {}, lambda s: s.redis.hset(s.run, "reopen", "")),
    "frozen": ("run:d:r", FAN, {}, lambda s: s.redis.hset(s.run, "frozen", "x")),
    "counters too high": ("run:d:r", FAN, {}, then(finish_one, lambda s: s.redis.hset(s.run, "2", 2))),
    "counters lost": ("run:d:r", FAN, {}, then(finish_one, lambda s: s.redis.hdel(s.run, "2", "3"))),
    "a root lost": ("run:d:r", FAN, {}, lambda s: s.redis.hdel(s.run, "0")),
    "ready too many": ("ready:d:r", FAN, {}, lambda s: s.redis.sadd(s.shard + "ready:d:r", "2")),
    "outbox too many": ("outbox", FAN, {}, lambda s: s.redis.zadd(s.shard + "outbox", {"d/r": 1})),
    "active lost": ("active:d", FAN, {}, lambda s: s.redis.srem(s.shard + "active:d", "r")),
    "active too many": (
        "active:d",
        FAN,
        {"max_active_runs": 1},
        then(lambda s: s.redis.sadd(s.shard + "active:d", "ghost"), second_run),
    ),
    "running_runs": ("running_runs", FAN, {}, lambda s: s.redis.zrem(s.shard + "running_runs", "d/r")),
    "queue lost": (
        "queue:d",
        FAN,
        {"max_active_runs": 1},
        then(second_run, lambda s: s.redis.zrem(s.shard + "queue:d", "r2")),
    ),
    "queue too many": (
        "queue:d",
        FAN,
        {"max_active_runs": 1},
        lambda s: s.redis.zadd(s.shard + "queue:d", {"ghost": 1}),
    ),
    "queued_runs": ("queued_runs", FAN, {}, lambda s: s.redis.zadd(s.shard + "queued_runs", {"d/r": 1})),
    "ended too many": ("ended", FAN, {}, lambda s: s.redis.zadd(s.shard + "ended", {"d/r": 1})),
    "runs": ("runs:d", FAN, {}, lambda s: s.redis.zrem(s.shard + "runs:d", "r")),
    "runs ghost": ("runs:d", FAN, {}, lambda s: s.redis.zadd(s.shard + "runs:d", {"ghost": 1})),
    "dates ghost": (
        "dates:d",
        FAN,
        {},
        lambda s: [s.redis.zadd(f"{s.shard}{x}:d", {"ghost": 1}) for x in ("runs", "dates")],
    ),
    "dags": ("dags", FAN, {}, lambda s: s.redis.srem(s.shard + "dags", "d")),
    "slots": ("slots", FAN, {"schedule": "@daily"}, lambda s: s.redis.zrem(s.shard + "slots", "d")),
    "expire": (
        "timers",
        FAN,
        {"run_timeout": "1h"},
        lambda s: s.redis.zrem(s.shard + "timers", "expire/d/r"),
    ),
    "deadline": (
        "timers",
        FAN,
        {"deadline": "1h"},
        lambda s: s.redis.zrem(s.shard + "timers", "deadline/d/r"),
    ),
    "retry": (
        "timers",
        RETRY,
        {},
        then(fail_once, lambda s: s.redis.zrem(s.shard + "timers", "retry/d/r/0/1")),
    ),
    "timeout": (
        "timers",
        {"a": {"timeout": "1h"}},
        {},
        then(run_one, lambda s: s.redis.zrem(s.shard + "timers", "timeout/d/r/0/1")),
    ),
    "a timer of no kind": ("timers", FAN, {}, lambda s: s.redis.zadd(s.shard + "timers", {"odd/d/r": 9e15})),
    "busy lost": ("busy:d", FAN, {}, lambda s: s.redis.srem(s.shard + "busy:d", "r/0")),
    "busy too many": ("busy:d", FAN, {}, lambda s: s.redis.sadd(s.shard + "busy:d", "r/3", "ghost/1")),
    "busy of a task": (
        "busy:d:0",
        {"a": {"max_active": 1}},
        {},
        lambda s: s.redis.sadd(s.shard + "busy:d:0", "ghost/0"),
    ),
    "parked lost": (
        "ready:d:r",
        FAN,
        {"max_active_tasks": 1},
        lambda s: s.redis.delete(s.shard + "parked:d"),
    ),
    "parked too many": (
        "parked:d",
        FAN,
        {},
        lambda s: s.redis.zadd(s.shard + "parked:d", {"ghost/0": 1, "r/0": 2}),
    ),
    "parked in vain": (
        "parked:d",
        FAN,
        {"max_active_tasks": 1},
        then(
            lambda s: s.redis.sadd(s.shard + "busy:d", "r/2"),
            finish_one,
            lambda s: s.redis.delete(s.shard + "busy:d"),
        ),
    ),
    "ended lost": ("ended", FAN, {}, ended),
    "a backfill out of sight": (
        "backfill_look",
        FAN,
        {"schedule": "@daily"},
        then(backfill, lambda s: s.redis.delete(s.shard + "backfill_look")),
    ),
    "a backfill's run of nobody": (
        "backfill_runs:d:bf1",
        FAN,
        {"schedule": "@daily"},
        then(backfill, lambda s: s.redis.sadd(s.shard + "backfill_runs:d:bf1", "ghost")),
    ),
    "dates lost": (
        "dates:d",
        FAN,
        {"schedule": "@daily"},
        then(backfill, lambda s: s.redis.delete(s.shard + "dates:d")),
    ),
    "busy of a key": (
        "busy:d:key:k",
        {"a": {"concurrency_key": "k"}},
        {},
        lambda s: s.redis.sadd(s.shard + "busy:d:key:k", "ghost/0"),
    ),
    "a stop too many": ("stops", FAN, {}, lambda s: s.redis.sadd(s.shard + "stops", "default/d/r/0/1")),
    # in the pool
    "entry lost": ("entries", FAN, {}, lambda s: s.redis.hdel(s.pool + "entries", "d/r/0/1")),
    "entries, slots and hints lost": (
        "entries",
        FAN,
        {},
        lambda s: s.redis.delete(*(s.pool + x for x in ("entries", "held", "stream"))),
    ),
    "entry of nobody": (
        "entries",
        FAN,
        {},
        lambda s: s.redis.hset(s.pool + "entries", "d/r/0/7", s.redis.hget(s.pool + "entries", "d/r/0/1")),
    ),
    "slot lost": ("held", FAN, {}, lambda s: s.redis.srem(s.pool + "held", "d/r/0/1")),
    "slot of nobody": ("held", FAN, {}, lambda s: s.redis.sadd(s.pool + "held", "x/r/0/1", "d/r/0/1#2")),
    "hint lost": ("stream", FAN, {}, lambda s: s.redis.xtrim(s.pool + "stream", maxlen=0, approximate=False)),
    "hint delivered to nobody": (
        "stream",
        FAN,
        {},
        lambda s: [s.redis.xack(s.pool + "stream", "workers", h.entry) for h in s.engine.take()],
    ),
    "lease lost": ("lease", FAN, {}, then(Site.grant, lambda s: s.redis.delete(s.pool + "lease"))),
    "lease of nobody": ("lease", FAN, {}, lambda s: s.redis.zadd(s.pool + "lease", {"x/r/0/1": 9e15})),
    "line lost": ("wait:d", FAN, {}, lambda s: s.redis.delete(s.pool + "wait:d")),
    "group out of line": ("wait:d", FAN, {}, lambda s: s.redis.delete(s.pool + "groups")),
    "group of nobody": ("groups", FAN, {}, lambda s: s.redis.zadd(s.pool + "groups", {"ghost": 0})),
    "in line twice": ("wait:d", FAN, {}, lambda s: s.redis.zadd(s.pool + "wait:d", {"x/r/0/1": 1})),
    "slots in vain": ("held", FAN, {}, lambda s: s.redis.hset(s.pool + "meta", "slots", 5)),
}
ONE_SLOT = ("line lost", "group out of line", "in line twice", "slots in vain")


def to_the_end(engine: Engine, run: str = "r", body: Body = success) -> None:
    """Workers that fell silent lose what they held; everything that can go on does."""
    pool = engine.store.keys.pool("default")
    for _ in range(400):
        engine.settle(body)
        if engine.client.run("d", run)["state"] not in ("queued", "running"):
            return
        for id in engine.store.client.zrange(pool + "lease", 0, -1):
            engine.store.client.zadd(pool + "lease", {id: 1})
        engine.scheduler._due["reap"] = 0.0
    raise AssertionError(engine.states("d", run))


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_is_named_and_repaired(engine: Engine, damage: str) -> None:
    key, tasks, more, break_it = DAMAGES[damage]
    engine.client.set_pool("default", 1 if damage in ONE_SLOT else 16)
    site = Site(engine)
    site.begin(tasks, **more)
    clean(engine)
    break_it(site)
    found = look(engine)
    assert key in {d.key for d in found.differences}, [str(d) for d in found.differences]
    mended = look(engine, fix=True)
    assert not mended.left, [str(d) for d in mended.left]
    clean(engine)
    to_the_end(engine)
    assert engine.client.run("d", "r")["state"] == "success"
    assert {r["state"] for r in engine.client.runs("d") if r["run"] != "ghost"} <= {"success", "running"}
    clean(engine)


def test_big_runs_are_looked_at_in_parts(engine: Engine) -> None:
    site = Site(engine)
    site.begin({f"t{i}": {} for i in range(1100)}, max_active_tasks=5000)
    clean(engine)
    site.redis.srem(site.shard + "busy:d", "r/3", "r/777", "r/1099")
    found = look(engine)
    assert {d.task for d in found.differences} == {"t3", "t777", "t1099"}
    assert not look(engine, fix=True).left
    clean(engine)


# ---- a failover that lost what one cell had written last


class Tail:
    """What a cell was, to be put back as a replica would that had not heard of the rest."""

    def __init__(self, engine: Engine, prefix: str) -> None:
        self.redis, self.prefix = engine.store.client, prefix
        if not allowed(self.redis, prefix, ["RESTORE KEY 0 x"])[0]:
            pytest.skip("this user may not put keys back, which is the test's own need")
        self.kept = {key: self.redis.dump(key) for key in self._keys()}

    def _keys(self) -> list[bytes]:
        return list(self.redis.scan_iter(match=self.prefix + "*", count=1000))

    def lose(self) -> None:
        for key in self._keys():
            self.redis.delete(key)
        for key, value in self.kept.items():
            self.redis.restore(key, 0, value)


@pytest.mark.parametrize("seed", range(6))
def test_a_pool_that_lost_its_tail_is_repaired_and_every_run_ends(engine: Engine, seed: int) -> None:
    """Attempts that it has forgotten are taken as lost, and those that it remembers wrongly are dropped."""
    rnd = random.Random(seed)
    engine.client.set_pool("default", 8)
    engine.register("d", DAG20, max_active_runs=10)
    accepted: dict[str, int] = {}

    def body(attempt: AttemptId, _: str) -> Report | None:
        accepted[f"{attempt.run}/{attempt.task}"] = accepted.get(f"{attempt.run}/{attempt.task}", 0) + 1
        return Report(str(attempt), "success", 1)

    runs = [engine.client.trigger("d")["run"] for _ in range(3)]
    for _ in range(rnd.randint(0, 6)):
        engine.step()
        engine.work(body, count=rnd.randint(1, 4))
    tail = Tail(engine, engine.store.keys.pool("default"))
    for _ in range(rnd.randint(1, 12)):
        engine.step()
        engine.work(body, count=rnd.randint(1, 6))
    tail.lose()
    assert not look(engine, fix=True).left
    for run in runs:
        to_the_end(engine, run, body)
        shown = engine.client.run("d", run)
        assert shown["state"] == "success"
        for task in shown["tasks"].values():
            assert {h["outcome"] for h in task["history"]} <= {"lost"}
    assert set(accepted) == {f"{r}/{t}" for r in runs for t in range(20)}
    clean(engine)


@pytest.mark.parametrize("seed", range(6))
def test_a_shard_that_lost_its_tail_is_repaired_and_every_run_ends(engine: Engine, seed: int) -> None:
    """Reports that it has forgotten never come again: their attempts left the pool, and are taken as lost."""
    rnd = random.Random(seed)
    engine.client.set_pool("default", 8)
    engine.register("d", DAG20, max_active_runs=10)
    runs = [engine.client.trigger("d")["run"] for _ in range(2)]
    for _ in range(rnd.randint(1, 6)):
        engine.step()
        engine.work(count=rnd.randint(1, 4))
    tail = Tail(engine, engine.store.shard.prefix("d"))
    for _ in range(rnd.randint(1, 12)):
        engine.step()
        engine.work(count=rnd.randint(1, 6))
    tail.lose()
    engine.scheduler.dispatch.doubt()
    for _ in range(10):  # what was given out before is offered again, and found gone
        look(engine, fix=True)
        engine.settle()
    for run in runs:
        to_the_end(engine, run)
        assert engine.client.run("d", run)["state"] == "success"
    clean(engine)


# ---- who repairs


def kinds(engine: Engine) -> list[str]:
    return [e["kind"] for e in engine.client.events(1000)]


def test_what_is_repaired_is_an_event_that_says_whether_a_failover_explains_it(engine: Engine) -> None:
    site = Site(engine)
    site.begin(FAN)
    site.redis.hincrby(site.run, "left", 1)
    look(engine, fix=True)
    (told,) = [e for e in engine.client.events(1000) if e["kind"] == "audit"]
    assert not told["expected"]
    assert "this is a defect" in told["text"]
    assert (told["key"], told["there"], told["should"]) == ("run:d:r", "left 5, failed 0", "left 4, failed 0")
    engine.scheduler.audit.outage(1.5)
    site.redis.hincrby(site.run, "left", 1)
    look(engine, fix=True)
    told = [e for e in engine.client.events(1000) if e["kind"] == "audit"][-1]
    assert told["expected"]
    assert "as after a failover" in told["text"]


def test_without_a_scheduler_the_command_takes_the_shards_for_a_moment(engine: Engine) -> None:
    site = Site(engine)
    site.begin(FAN)
    engine.scheduler._hand_over()
    site.redis.hincrby(site.run, "left", 1)
    site.redis.hdel(site.pool + "entries", "d/r/0/1")
    site.redis.sadd(site.pool + "held", "x/r/0/1")
    found = audit(engine.store, fix=True, sleep=lambda _: None)
    assert not found.left, [str(d) for d in found.left]
    assert {"run:d:r", "entries", "held"} <= {d.key for d in found.repaired}
    assert not any(s["owner"] for s in engine.client.shards())
    assert not engine.client.schedulers()
    engine._scheduler = engine.new_scheduler("two")
    to_the_end(engine)
    assert engine.client.run("d", "r")["state"] == "success"


def test_what_was_reported_and_not_applied_is_no_difference(engine: Engine) -> None:
    """Nobody applies it: whether the attempts are lost can't be said."""
    site = Site(engine)
    site.begin(FAN)
    engine.scheduler._hand_over()
    engine.work()
    auditing_patience, auditing.PATIENCE_S = auditing.PATIENCE_S, 0.05
    try:
        found = audit(engine.store, sleep=lambda _: None)
    finally:
        auditing.PATIENCE_S = auditing_patience
    assert not found.differences
    assert found.unsure == {"d/r"}


def test_a_deposed_owner_repairs_nothing(engine: Engine) -> None:
    site = Site(engine)
    site.begin(FAN)
    shard = engine.store.shard.of("d")
    site.redis.hincrby(site.run, "left", 1)
    old = engine.scheduler.ownership.tokens[shard]
    engine.store.shard.release(shard, old)
    engine.store.shard.acquire(shard, "other", "")
    round_ = auditing.ShardRound(engine.store, shard, auditing.Shapes(engine.store), old)
    with pytest.raises(Fenced):
        list(round_.steps(auditing.Scope([("d", "r")])))
    assert site.redis.hget(site.run, "left") == b"5"


def test_a_repair_said_twice_is_done_once(engine: Engine) -> None:
    site = Site(engine)
    site.begin(FAN)
    shard = engine.store.shard.of("d")
    token = engine.scheduler.ownership.tokens[shard]
    site.redis.hincrby(site.run, "left", 1)
    (found,) = audit(engine.store, sleep=lambda _: None).differences
    assert engine.store.audit.fix_shard(shard, token, [found.repair]) == [True]
    assert engine.store.audit.fix_shard(shard, token, [found.repair]) == [False]
    clean(engine)


def test_the_background_finds_it_by_itself(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner its shards, the leader the pools; where nothing has happened since, nothing is asked."""
    for pause in ("ROUND_S", "FIRST_S"):
        monkeypatch.setattr(background, pause, 0.0)
    site = Site(engine)
    site.begin(FAN)
    site.redis.hincrby(site.run, "left", 1)
    site.redis.sadd(site.pool + "held", "x/r/0/1")
    one = engine.scheduler
    one.audit.happened([engine.store.shard.of("d")])
    for _ in range(1000):
        one.audit._next = 0.0
        one.audit.step()
        if kinds(engine).count("audit") == 2:
            break
    assert kinds(engine).count("audit") == 2
    clean(engine)
