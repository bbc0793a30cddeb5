"""RD-108, and a server whose data is gone: names never mix, and what is lost is lost without stopping anybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redsched.store import Store
from tests.processes import FOREVER, Site, first_time, needs, sh, until

from .commands import Commands
from .conftest import Make

ODD = ["a:b", "a:b:c", "{a}:b", "{a}", "a b", "a/b", "*"]
NEAR = ["a", "a.b", "a.b.c", "a-b", "a_b", "A", "run", "dag", "s.0", "_"]


@pytest.fixture(scope="module")
def site(make_shared: Make) -> Site:
    made = make_shared()
    made.start(2, 1, concurrency=4)
    return made


def test_rd_108_odd_names_are_refused_by_one_rule(site: Site) -> None:
    """As DAG, task, pool, team and run; nothing of them is there afterwards, and asking for them says so."""
    rule = "letters A-Z a-z, digits"
    forms = [
        "dag: '{}'\ntasks: {{t: {{run: 'true'}}}}\n",
        "dag: good\ntasks: {{'{}': {{run: 'true'}}}}\n",
        "dag: good\ntasks: {{t: {{run: 'true', pool: '{}'}}}}\n",
        "dag: good\nteam: '{}'\ntasks: {{t: {{run: 'true'}}}}\n",
    ]
    texts = [(odd, form.format(odd)) for odd in ODD for form in forms]
    for number, (_, text) in enumerate(texts):
        (site.folder / f"odd{number}.yaml").write_text(text)
    site.dag("good", {"t": sh()})
    with Commands(site) as run:
        done = run.at_once([["dag", "register", f"odd{number}.yaml"] for number in range(len(texts))])
        for (odd, text), one in zip(texts, done, strict=True):
            assert one.code == 2 and odd in one.err and rule in one.err, (text, one)
        for words in (["pool", "set", "x:y", "--slots", "1"], ["run", "start", "good", "--id", "a:b"]):
            assert rule in run(*words, code=2).err
        for words in (["dag", "show"], ["dag", "delete", "--yes"], ["run", "start"], ["pool", "show"]):
            run(*words, "a:b", code=3)
    assert site.client.runs("good") == []
    assert [d["dag"] for d in site.client.dags()] == ["good"]


def test_rd_108_names_that_are_near_never_mix(site: Site) -> None:
    """Every DAG has tasks and runs of the others' names; each is cleared, then deleted, and the rest is left whole."""
    tasks: dict[str, dict[str, Any]] = {n: sh(f"echo '::result:: \"{n}\"'") for n in NEAR}
    tasks["b.run.c"] = sh() | needs(*NEAR)
    for dag in NEAR:
        site.dag(dag, tasks)
        for run in ("a", "a.b", "run"):
            site.run(dag, run=run)
    for dag in NEAR:
        site.wait(dag, ["a", "a.b", "run"])

    def whole(dag: str) -> Any:
        results = [site.client.result(dag, "a.b", task) for task in NEAR]
        assert results == NEAR
        return [site.client.run(dag, run) for run in ("a", "a.b", "run")], site.client.logs(
            dag, "a", "a"
        ).data

    def others(dag: str) -> dict[str, Any]:
        return {other: whole(other) for other in left if other != dag}

    left = list(NEAR)
    for dag in NEAR:
        before = others(dag)
        site.client.clear(dag, "a.b", ["b.run.c"])
        until(
            lambda d=dag: len(site.trail("b.run.c")) and site.state(d, "a.b", "b.run.c") == "success",
            "not again",
        )  # type: ignore[misc]
        assert site.ended(dag, "a.b")["tasks"]["b.run.c"]["attempt"] == 2
        site.client.delete(dag)
        left.remove(dag)
        assert {other: whole(other) for other in left} == before
    assert not {d["dag"] for d in site.client.dags()} & set(NEAR)


@pytest.mark.parametrize(
    "form", [["--redis={}"], ["--redis", "{}"], ["--redis", "{}", "--password", "s3cret"]]
)
def test_rd_106_no_password_is_seen_by_ps(make: Make, form: list[str]) -> None:
    """A scheduler and a worker that were given it on their command lines; the process stays the same one."""
    site = make()
    url = (site.settings.redis or "").replace("//", "//default:s3cret@")
    plain = {k: v for k, v in site.env.items() if k != "REDSCHED_REDIS_URL"}
    words = [word.format(url) for word in form]
    ones = [site.process(kind, *words, env=plain) for kind in ("scheduler", "worker")]
    site.ready(ones)
    for one in ones:
        line = Path(f"/proc/{one.pid}/cmdline").read_text()
        assert "s3cret" not in line and one.name[:6] in line
        assert one.stop() == 0
        assert one.count("s3cret") == 0


def test_a_server_that_lost_its_data_is_taken_into_use_again(make: Make, new_server: Any) -> None:
    """FLUSHALL while bodies run: they are stopped, nobody ends, and what comes then is looked after as before.

    The default pool's name was not written down again, so that nobody took back what a dead worker held.
    """
    site = make(new_server(), worker_lease_ms=1500)
    _, (worker,) = site.start(2, 1)
    site.dag("d", {"t": sh(FOREVER) | {"kill_grace": "500ms"}})
    old = site.nth(1, "t", site.run("d"))
    site.redis.say("FLUSHALL")
    until(lambda: not site.of_task("t", old.run), "the old body goes on")
    site.ready(site.processes)
    site.dag("d", {"t": first_time(FOREVER)})
    new = site.run("d")
    site.nth(1, "t", new)
    assert [p["pool"] for p in site.client.pools()] == ["default"]
    assert Store.open(site.settings, "test").pool.names() == ["default"]
    worker.kill()
    site.ready([site.worker()])
    shown = site.ended("d", new)
    assert (shown["state"], shown["tasks"]["t"]["attempt"]) == ("success", 2)
    site.slots_free()
