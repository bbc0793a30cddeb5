"""Redis flushed, stopped, full, restricted: nothing is lost or doubled, nobody shouts, and everything goes on by itself."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from redsched import client as client_module
from redsched.errors import DefinitionError, Unavailable
from tests.processes import FOREVER, KEPT, SAY, Site, dag20, executions, first_time, gate, line, until
from tests.proxy import Proxy

from .load import Load, load
from .siege import stream

NewSite = Callable[..., Site]


def accepted(busy: Load) -> list[str]:
    """The runs, when the load has ended; no call of it failed."""
    runs = [run for _, run in busy.end()]
    assert not busy.refused
    return runs


def each_once(site: Site, dag: str, runs: list[str], tasks: int) -> None:
    shown = site.wait(dag, runs, 60)
    assert {s["state"] for s in shown} == {"success"}
    assert {t["attempt"] for s in shown for t in s["tasks"].values()} == {1}
    counts = executions(line for line in site.trail() if line.run in runs)
    assert len(counts) == len(runs) * tasks and set(counts.values()) == {1}


# ---------------------------------------------------------------- away, flushed, cut


def test_scripts_flushed_and_redis_restarted_under_load(new_site: NewSite) -> None:
    """RD-101"""
    site = new_site(*KEPT)
    server = site.redis
    site.start(2, 2)
    site.dag("d", dag20())
    with load(site, "d") as busy:
        for _ in range(10):
            busy.progress(3)
            server.say("SCRIPT", "FLUSH")
            server.say("FUNCTION", "FLUSH")
        for number in (signal.SIGTERM, signal.SIGKILL):
            server.restart(number)
            busy.progress(5)
        runs = accepted(busy)
    each_once(site, "d", runs, 20)
    assert all(process.alive for process in site.processes)
    checks = {c["check"]: c["ok"] for c in site.json("doctor")}
    assert checks["scripts"] and checks["schedulers"] and checks["workers"]


def test_connections_cut_and_redis_away(new_site: NewSite) -> None:
    """RD-102: idle readers come back by themselves, and say so once."""
    site = new_site(*KEPT)
    server = site.redis
    schedulers, workers = site.start(1, 2)
    site.dag("d", {f"t{i}": {"call": "bodies:both"} for i in range(100)})
    for _ in range(5):
        server.say("CLIENT", "KILL", "TYPE", "normal")
        time.sleep(0.3)
    server.kill(signal.SIGTERM)
    for worker in workers:
        worker.says("Redis does not answer")
    time.sleep(1)
    server.start()
    began = time.monotonic()
    run = site.run("d")
    each_once(site, "d", [run], 100)
    assert time.monotonic() - began < 10
    for worker in workers:
        worker.says("Redis is back after")
        assert worker.count("Redis does not answer") == worker.count("Redis is back after") == 1
        assert len(worker.lines) < 10, worker.lines
    (scheduler,) = schedulers
    assert len([x for x in scheduler.lines if " acquired, " not in x]) < 20, scheduler.lines


@pytest.mark.parametrize("what", ["stream", "group"])
def test_a_stream_or_its_group_vanishes(site: Site, what: str) -> None:
    """RD-103"""
    site.start(1, 2)
    site.dag("d", {f"t{i}": {"call": "bodies:both"} for i in range(10)})
    runs = [site.run("d")]
    each_once(site, "d", runs, 10)
    if what == "stream":
        assert site.redis.say("DEL", stream(site)) == 1
    else:
        assert site.redis.say("XGROUP", "DESTROY", stream(site), "workers") == 1
    runs += [site.run("d"), site.run("d")]
    each_once(site, "d", runs, 10)
    assert sum(len(w.lines) for w in site.processes if w.name.startswith("worker")) < 20


@pytest.mark.parametrize("name", ["its own", "another"])
def test_what_a_killed_worker_had_read_is_run_by_the_next(new_site: NewSite, name: str) -> None:
    """RD-104: five tasks read ahead, the worker killed in the first; its consumer goes when nothing hangs on it any more."""
    site = new_site(worker_lease_ms=1500)
    site.start(1, 0)
    rest = {f"t{i}": {"run": SAY} for i in range(4)}
    site.dag("d", {"first": first_time(FOREVER) | {"priority": 5}, **rest})
    run = site.run("d")
    until(lambda: sum(p["used"] for p in site.client.pools()) == 5, "not queued")
    victim = site.worker(concurrency=1)
    site.nth(1, "first", run)
    if name == "another":  # names go by who is alive
        site.ready([site.worker(concurrency=1)])
    victim.kill()
    if name == "its own":
        site.worker(concurrency=1)
    (shown,) = site.wait("d", run)
    assert shown["state"] == "success"
    assert {n: t["attempt"] for n, t in shown["tasks"].items()} == {"first": 2, **dict.fromkeys(rest, 1)}
    assert site.executed(run) == {"first": 2, **dict.fromkeys(rest, 1)}
    site.slots_free()
    assert site.redis.say("XPENDING", stream(site), "workers")["pending"] == 0


# ---------------------------------------------------------------- roles, networks


def test_a_server_that_becomes_a_replica_and_a_master_again(new_site: NewSite) -> None:
    """READONLY is no loss and no news for who triggers: calls wait, bodies go on, each process says it in a few lines."""
    site = new_site(*KEPT)
    site.start(2, 2)
    site.dag("d", dag20())
    with load(site, "d") as busy:
        for _ in range(3):
            busy.progress(5)
            site.redis.say("REPLICAOF", "127.0.0.1", "1")
            before = len(busy.runs)
            time.sleep(0.5)
            assert len(busy.runs) <= before + 1, "a replica takes writes"
            site.redis.say("REPLICAOF", "NO", "ONE")
        busy.progress(5)
        runs = accepted(busy)
    each_once(site, "d", runs, 20)
    assert all(process.alive for process in site.processes)
    assert max(p.count("UNBLOCKED") + p.count("READONLY") for p in site.processes) <= 6


def test_a_network_that_cuts_hangs_delays_and_loses_replies(new_site: NewSite) -> None:
    """Everybody is behind it. Nothing is lost or doubled: no lease runs out while nobody can renew it or take it back."""
    site = new_site(worker_lease_ms=3000)
    with Proxy(site.redis.url) as proxy:
        site.extra_env["REDSCHED_REDIS_URL"] = proxy.url
        site.start(2, 2)
        site.dag("d", dag20())
        with load(site, "d") as busy:
            for command in ("FCALL", "XREADGROUP", "XREAD", "FCALL"):
                busy.progress(4)
                lost = proxy.cut_next_reply(command)
                until(lost.is_set, f"no reply of {command} is lost", 10)
            for _ in range(3):
                busy.progress(4)
                proxy.cut_all()
            proxy.delay_s = 0.1
            busy.progress(10)
            proxy.delay_s = 0
            proxy.hang()
            time.sleep(2)
            proxy.go_on()
            busy.progress(4)
            runs = accepted(busy)
        each_once(site, "d", runs, 20)
        site.slots_free()
        assert all(process.alive for process in site.processes)


# ---------------------------------------------------------------- full


def test_redis_out_of_memory(new_site: NewSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """RD-105: what ended meanwhile is recorded afterwards, nothing is lost or done twice, and a trigger says what is wrong."""
    site = new_site(worker_lease_ms=1500)
    server = site.redis
    site.start(1, 1, concurrency=4)
    site.dag("d", {f"t{i}": {"call": "bodies:slowly", "with": {"seconds": 0.1}} for i in range(100)})
    site.dag("gated", {"t": {"run": f"{SAY}; {gate('go')}; {line('ended')}"}})
    gated, run = site.run("gated"), site.run("d")
    until(lambda: len(site.trail()) > 20 and site.begun("t"), "does not run")
    used = int(server.say("INFO", "memory")["used_memory"])
    server.say("CONFIG", "SET", "maxmemory", used - 200_000)
    monkeypatch.setattr(client_module, "PATIENCE_S", 0.3)
    with pytest.raises(Unavailable, match="no memory left"):
        until(lambda: not site.run("d"), "not refused")
    site.open("go")
    until(lambda: site.trail("t")[-1].word == "ended", "the body does not end")
    ended = len(site.trail())
    time.sleep(2)  # more than a lease: what is running is renewed all the same
    during = len(site.trail()) - ended
    server.say("CONFIG", "SET", "maxmemory", 0)
    back = time.monotonic()
    until(lambda: len(site.trail()) > ended + during, "does not go on", 10)
    each_once(site, "d", [run], 100)
    each_once(site, "gated", [gated], 1)
    assert time.monotonic() - back < 10
    assert all(process.alive for process in site.processes)
    assert site.client.run("d", "latest")["run"] == run, "a refused trigger has made a run"


@pytest.mark.parametrize("where", ["limit", "server"])
def test_results_that_are_too_big(new_site: NewSite, where: str) -> None:
    """RD-111: exact up to the limit; above it the task fails, once. Also where the server's own limit is lower than ours."""
    more = {} if where == "limit" else {"result_limit": 4_194_304}
    site = new_site(**more)
    server = site.redis
    if where == "server":
        server.say("CONFIG", "SET", "proto-max-bulk-len", 1_048_576)
    site.start()
    limit = 262_144 if where == "limit" else 1_000_000
    sizes = {"small": 1024, "fits": limit - 2, "big": 2_097_152, "huge": 67_108_864}
    (site.folder / "sizes.py").write_text(
        "import bodies\n"
        "def make(size):\n bodies.say()\n return 'x' * size\n"
        "def check(text, size):\n bodies.say()\n assert text == 'x' * size\n"
    )
    tasks = {n: {"call": "sizes:make", "with": {"size": s}, "retries": 3} for n, s in sizes.items()}
    for name in ("small", "fits"):
        tasks[f"{name}_ok"] = {"call": "sizes:check", "with": {"text": f"${{{name}}}", "size": sizes[name]}}
    site.dag("d", tasks)
    site.dag("other", dag20())
    run = site.run("d")
    each_once(site, "other", [site.run("other")], 20)
    (shown,) = site.wait("d", run)
    states = {n: t["state"] for n, t in shown["tasks"].items()}
    assert states == dict.fromkeys(tasks, "success") | {"big": "failed", "huge": "failed"}
    assert {t["attempt"] for t in shown["tasks"].values()} == {1}
    reasons = {n: shown["tasks"][n]["reason"] for n in ("big", "huge")}
    assert reasons["huge"].startswith(f"result too big: 67108866 > {site.settings.result_limit}")
    assert ("too big: 2097154 > 262144" if where == "limit" else "invalid bulk length") in reasons["big"]
    site.dag("p", {"t": {"run": "true"}}, params={"x": "y"})
    with pytest.raises(DefinitionError, match="limit 65536"):
        site.run("p", params={"x": "x" * 67_108_864})
    assert site.client.runs("p") == []


# ---------------------------------------------------------------- logins, rights, URLs

SECRET = "p@ss:w/rd#1?x%20=+&"
ENCODED = "p%40ss%3Aw%2Frd%231%3Fx%2520%3D%2B%26"


@pytest.mark.parametrize("source", ["cli", "environment", "file"])
def test_a_password_with_reserved_characters(new_site: NewSite, source: str) -> None:
    """RD-106: percent-encoded in the URL, or given apart; from each place; and never shown."""
    site = new_site()
    server = site.redis
    assert quote(SECRET, safe="") == ENCODED
    server.say("ACL", "SETUSER", "weird", "on", f">{SECRET}", "~*", "+@all")
    (site.folder / "d.yaml").write_text(f"dag: d\ntasks: {{t: {{run: '{SAY}'}}}}\n")
    place = f"127.0.0.1:{server.port}"
    apart = {"redis": f"redis://{place}", "username": "weird", "password": SECRET, "db": "3"}
    encoded = {"redis": f"redis://weird:{ENCODED}@{place}/3"}
    raw = {"redis": f"redis://weird:{SECRET}@{place}/3"}
    clean = {k: v for k, v in site.env.items() if k != "REDSCHED_REDIS_URL"}

    def told(given: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        (site.folder / "redsched.toml").unlink(missing_ok=True)
        if source == "cli":
            return [x for k, v in given.items() for x in (f"--{k}", v)], clean
        if source == "environment":
            names = {k: f"REDSCHED_{'REDIS_URL' if k == 'redis' else k.upper()}" for k in given}
            return [], clean | {names[k]: v for k, v in given.items()}
        (site.folder / "redsched.toml").write_text("".join(f"{k} = '{v}'\n" for k, v in given.items()))
        return [], clean

    options, env = told(raw)
    done = site.cli("dag", "list", *options, code=2, env=env)
    assert "percent-encode" in done.stderr
    said = [done.stdout, done.stderr]
    for given in (encoded, apart):
        options, env = told(given)
        done = site.cli("dag", "register", "d.yaml", *options, env=env)
        said += [done.stdout, done.stderr]
    ones = [site.process(kind, *options, env=env) for kind in ("scheduler", "worker")]
    for given in (encoded, apart):
        options, env = told(given)
        done = site.cli("run", "start", "d", "--wait", *options, env=env)
        said += [done.stdout, done.stderr]
    for one in ones:
        if source != "cli":
            said.append(Path(f"/proc/{one.pid}/cmdline").read_text())
        assert one.stop() == 0
        said += one.lines
    assert len(site.trail()) == 2
    assert not any("ss:w" in text or "rd#1" in text or ENCODED[4:20] in text for text in said)
    assert set(server.say("INFO", "keyspace")) == {"db3"}


def test_a_restricted_user_is_enough(new_site: NewSite) -> None:
    """RD-107: with the documented rights everything works, and nothing outside the namespace is touched."""
    site = new_site(username="rs", password="pw", namespace="mine")
    server = site.redis
    server.say("ACL", "SETUSER", "rs", "on", ">pw", "~{mine:*", "&mine:*", "+@all", "-@dangerous", "-@admin")
    (site.folder / "d.yaml").write_text(
        "dag: d\ntasks:\n  a: {run: \"echo hi; echo '::result:: 1'\"}\n"
        "  b: {call: 'bodies:take', with: {given: '${a}'}, retries: 1}\n  c: {run: 'exit 1', needs: [b], allow_failure: true}\n"
    )
    site.cli("dag", "register", "d.yaml")
    site.start(2, 2)
    shown = site.json("run", "start", "d", "--wait")
    run = shown["run"]
    assert shown["state"] == "success"
    assert site.cli("run", "logs", "d", "latest", "a").stdout.startswith("hi\n")
    client = site.client
    client.dags(), client.dag("d"), client.versions("d"), client.pause("d"), client.resume("d")
    client.runs(), client.runs("d"), client.result("d", run, "b"), client.explain("d", run)
    client.clear("d", run), client.set_pool("p", 3), client.pools(), client.delete_pool("p")
    client.status(), client.shards(), client.workers(), client.schedulers()
    site.wait("d", run)
    checks = site.json("doctor")
    assert all(c["ok"] for c in checks), checks
    # What restarts, what dies and what is lost goes other ways.
    assert site.processes[0].stop() == 0
    site.processes[2].kill()
    site.cli("dag", "delete", "d", "--force", "--yes")
    assert server.say("ACL", "LOG") == []
    assert all(key.startswith("{mine:") for key in server.say("KEYS", "*"))


def test_a_short_socket_timeout_is_no_error(new_site: NewSite) -> None:
    """RD-109: idle waits end before it."""
    site = new_site(query="?socket_timeout=1")
    server = site.redis
    site.start(1, 2)
    site.dag("d", {"t": {"call": "bodies:both"}})
    each_once(site, "d", [site.run("d")], 1)
    lines = [len(p.lines) for p in site.processes]
    made = server.say("INFO", "stats")["total_connections_received"]
    time.sleep(4)
    assert server.say("INFO", "stats")["total_connections_received"] - made < 5
    assert [len(p.lines) for p in site.processes] == lines
    began = time.monotonic()
    each_once(site, "d", [site.run("d")], 1)
    assert time.monotonic() - began < 2
