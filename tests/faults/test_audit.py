"""The audit of an installation that is at work: it raises no false alarm, and repairs while everything goes on."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from redsched.errors import RedschedError
from redsched.scheduler import audit as background
from redsched.scheduler.audit import audit
from redsched.scheduler.loop import Scheduler
from redsched.store import Store
from tests.processes import FAIL, SKIP, Site, dag20, first_time, needs, sh, until

NewSite = Callable[..., Site]
SHAPES: dict[str, tuple[dict[str, dict[str, Any]], dict[str, Any]]] = {
    "deep": (dag20("bodies:ok"), {"max_active_runs": 8, "max_active_tasks": 12}),
    "rules": (
        {
            "a": first_time(FAIL) | {"retries": 2, "retry_delay": "50ms"},
            "b": sh(SKIP) | needs("a"),
            "c": sh(FAIL) | needs("a") | {"allow_failure": True},
            "d": sh() | needs("b", "c", rule="all_done") | {"max_active": 2, "timeout": "1m"},
            "e": sh() | needs("b", "c", rule="one_failed") | {"concurrency_key": "one"},
        },
        {"max_active_runs": 5, "run_timeout": "5m", "deadline": "5m"},
    ),
}


@contextmanager
def schedulers(site: Site, count: int) -> Iterator[list[Scheduler]]:
    """In this process, so that their audits can be made to run all the time."""
    made = [Scheduler(Store.open(site.settings, "scheduler"), f"s{i}") for i in range(count)]
    threads = [threading.Thread(target=one.run) for one in made]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        for one in made:
            one.stop.set()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)


def test_an_audit_all_the_time_under_load_raises_no_alarm(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From outside, and in the background of both owners, while runs are cleared, cancelled and marked."""
    for pause in ("ROUND_S", "FIRST_S"):
        monkeypatch.setattr(background, pause, 0.0)
    monkeypatch.setattr(background, "SHARE", 0.3)
    rnd, looks, runs = random.Random(5), 0, []
    with schedulers(site, 2) as both:
        workers = [site.worker(concurrency=4) for _ in range(2)]
        until(lambda: len(site.client.workers()) == 2, "no workers")
        for dag, (tasks, more) in SHAPES.items():
            site.dag(dag, tasks, **more)
        site.client.set_pool("default", 6)
        for i in range(120):
            runs.append((dag := rnd.choice(sorted(SHAPES)), site.run(dag)))
            try:
                act = rnd.choice(["clear", "cancel", "mark", "", "", ""])
                if act == "clear":
                    site.client.clear(*rnd.choice(runs))
                elif act == "cancel":
                    site.client.cancel(*rnd.choice(runs))
                elif act == "mark":
                    site.client.mark(*rnd.choice(runs), "success")
            except RedschedError:
                pass
            if i % 20 == 0:
                found, looks = audit(site.client.store), looks + 1
                assert not found.differences, [str(d) for d in found.differences]
        for dag, run in runs:
            site.client.wait(dag, run, 120)
        assert all(one.audit._over for one in both)
        assert all(w.alive for w in workers)
    assert looks == 6
    assert not [e for e in site.client.events(5000) if e["kind"] == "audit"]


def test_the_command_has_the_owner_repair_what_was_damaged(site: Site) -> None:
    site.start(2, 1)
    site.dag("d", {"a": sh("sleep 300"), "b": sh() | needs("a")})
    run = site.run("d")
    pool, redis = site.client.store.keys.pool("default"), site.client.store.client
    until(lambda: site.client.run("d", run)["tasks"]["a"]["state"] == "running", "it does not run")
    redis.hincrby(site.client.store.shard.prefix("d") + f"run:d:{run}", "left", 5)
    redis.sadd(pool + "held", "x/r/0/1")
    seen = json.loads(site.cli("doctor", "--audit", "--json", code=1).stdout)[-1]
    assert {d["key"] for d in seen["differences"]} == {f"run:d:{run}", "held"}
    done = site.json("doctor", "--fix")[-1]
    assert done["ok"], done
    assert len(done["repaired"]) == 2
    assert [e["kind"] for e in site.json("events")].count("audit") == 2
    assert site.json("doctor", "--audit")[-1]["ok"]
