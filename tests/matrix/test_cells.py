"""The whole of it, with real processes, in every place where it may be told to run. What a machine can't run is skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redsched.doctor import ENOUGH
from redsched.errors import Unavailable
from redsched.settings import Settings
from redsched.store import Store
from tests.processes import SAY, SKIP, Site, dag20, first_time, gate, needs, sh, until

from .places import WEIRD, Place, documented_user
from .tls import Authority

# Each server, protocol and place at least once; where a cell names none, it is the embedded server and RESP2.
CELLS = (
    *("embedded+resp3", "redis7+tls", "newest+resp3", "unix", "login+resp3", "acl", "tls+resp3"),
    *("cluster+resp3", "redis7+cluster", "sentinel"),
)
MIXED: dict[str, dict[str, Any]] = {
    "source": {"call": "bodies:take", "with": {"given": "${params.x}"}},
    "again": {**first_time("exit 1"), "retries": 1, **needs("source")},
    "narrow1": {"call": "bodies:both", "pool": "narrow", **needs("again")},
    "narrow2": {"call": "bodies:both", "pool": "narrow", **needs("again")},
    "skipped": {**sh(SKIP), **needs("again")},
    "sink": {
        "call": "bodies:take",
        "with": {"given": "${source}"},
        **needs("source", "narrow1", "narrow2", "skipped", rule="none_failed"),
    },
}


@pytest.fixture
def site(place: Place, tmp_path: Path) -> Iterator[Site]:
    # The installation has no name of its own, because the documented user may see no other than `rs`.
    with Site(tmp_path / "site", None, redis=place.url, namespace="rs") as made:
        yield made


@pytest.mark.parametrize("place", CELLS, indirect=True)
def test_everything_ends_as_it_should(site: Site, place: Place) -> None:
    """Two pools, results, retries, a skip, a schedule, a cancel, a clear, logs; then both processes end by themselves."""
    site.client.set_pool("narrow", 1)
    (scheduler,), (worker,) = site.start(concurrency=3, pools=("default", "narrow"))
    site.dag("wide", dag20())
    site.dag("mixed", MIXED, params={"x": {"type": "object"}})
    site.dag("ticks", {"tick": {"call": "bodies:both"}}, schedule={"every": "1s"})
    site.dag("long", {"wait": {"run": f"{SAY}; {gate('never')}"}})

    wide = [site.run("wide") for _ in range(2)]
    mixed = site.run("mixed", params={"x": {"ü": [1, None]}})
    long = site.run("long")
    shown = [*site.wait("wide", wide), *site.wait("mixed", mixed)]
    assert [r["state"] for r in shown] == ["success"] * 3
    states = {name: task["state"] for name, task in shown[-1]["tasks"].items()}
    assert states == {**dict.fromkeys(MIXED, "success"), "skipped": "skipped"}
    assert site.client.result("mixed", mixed, "sink") == {"ü": [1, None]}
    assert Counter(line.task for line in site.trail(run=mixed) if line.word == "begun")["again"] == 2
    for run in wide:
        begun = Counter(line.task for line in site.trail(run=run) if line.word == "begun")
        assert begun == dict.fromkeys(dag20(), 1)

    site.becomes("long", long, "wait", "running")
    site.client.cancel("long", long)
    assert site.ended("long", long)["state"] == "cancelled"
    until(lambda: not site.of_task("wait", long), "the cancelled body goes on")
    site.client.clear("mixed", mixed, ["narrow1"], downstream=True)
    assert site.ended("mixed", mixed)["tasks"]["narrow1"]["attempt"] == 2
    until(lambda: ended(site, "ticks") >= 2, "the schedule makes no runs")
    site.client.pause("ticks")
    until(lambda: ended(site, "ticks") == len(site.client.runs("ticks")), "runs of the schedule do not end")
    site.slots_free()
    site.slots_free("narrow")

    checks = {c["check"]: c for c in site.json("doctor")}
    assert [c for c in checks.values() if not c["ok"]] == []
    assert [scheduler.stop(), worker.stop()] == [0, 0]
    for process in (scheduler, worker):
        noise = [x for x in process.lines if "answer" in x or "lost" in x or "broke" in x]
        assert not noise, noise
        assert WEIRD not in process.log.read_text()
    touched_nothing_else(place)


def ended(site: Site, dag: str) -> int:
    return sum(r["state"] == "success" for r in site.client.runs(dag))


def touched_nothing_else(place: Place) -> None:
    """RD-107: no key outside the namespace, no right that was missing."""
    keys = place.keys()
    assert keys and all(key.startswith("{rs:") for key in keys)
    assert [log for server in place.servers for log in server.say("ACL", "LOG")] == []
    if "/3" in place.url:
        assert place.servers[0].say("INFO", "keyspace").keys() == {"db3"}
    if place.url.startswith("redis+cluster"):
        assert all(server.say("DBSIZE") for server in place.servers), "a node has nothing to do"


def test_the_documented_user_is_the_one_that_doctor_gives() -> None:
    given = ENOUGH.format(user="redsched", namespace="rs").replace("PASSWORD", "password")
    assert documented_user() == given.split()


@pytest.mark.parametrize("place", ["acl"], indirect=True)
def test_the_documented_user_may_do_nothing_else(place: Place) -> None:
    """Not another namespace, not a channel, not a dangerous command: so it was right that ACL LOG is empty."""
    client = Store.open(Settings(redis=place.url), "test").client
    from redis.exceptions import NoPermissionError

    for words in (("GET", "{other:c}:x"), ("PUBLISH", "news", "x"), ("FLUSHALL",), ("CONFIG", "GET", "*")):
        with pytest.raises(NoPermissionError):
            client.execute_command(*words)
    assert len(place.servers[0].say("ACL", "LOG")) == 4
    place.servers[0].say("ACL", "LOG", "RESET")


@pytest.mark.parametrize("place", ["tls"], indirect=True)
def test_a_server_that_can_not_prove_who_it_is_gets_no_password(place: Place, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    ours = str(place.more["authority"].file)
    for url in (
        place.url.replace(ours, str(stranger.file)),
        f"rediss://localhost:{place.more['port']}/0",
        place.url.replace("localhost", "127.0.0.2"),
    ):
        with pytest.raises(Unavailable, match="can't be reached"):
            Store.open(Settings(redis=url), "test").control.now()
    assert Store.open(Settings(redis=place.url), "test").control.now()
