"""A master that dies, or must step down, under load: what docs/guarantees.md says of a failover, with real sentinels."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from redsched.errors import Unavailable
from redsched.settings import Settings
from redsched.store.connect import connect, translate
from tests.conftest import Server
from tests.processes import Site, until

from .places import Place
from .users import LOAD, OUTAGE_S, Users, all_ended


@pytest.fixture
def site(place: Place, tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "site", None, redis=place.url) as made:
        yield made


def master(place: Place) -> Server:
    _, port = place.sentinels[0].say("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mine")
    return next(s for s in place.servers if s.port == int(port))


def another_leads(place: Place, old: Server) -> None:
    """Every sentinel names another master, and it is one."""

    def moved() -> bool:
        named = [w.say("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mine")[1] for w in place.sentinels]
        if len({*named}) != 1 or int(named[0]) == old.port:
            return False
        return bool(master(place).say("ROLE")[0] in (b"master", "master"))

    until(moved, "no other master", 30)


def follows(place: Place, server: Server) -> bool:
    info = server.say("INFO", "replication")
    return (
        info["role"] == "slave"
        and info["master_port"] == master(place).port
        and info["master_link_status"] == "up"
    )


def all_follow(place: Place) -> None:
    """The sentinels would see to it, in eight seconds or in forty."""
    for server in place.servers:
        if server is not master(place) and not follows(place, server):
            server.say("REPLICAOF", "127.0.0.1", master(place).port)
    others = [s for s in place.servers if s is not master(place)]
    until(lambda: all(follows(place, s) for s in others), "an old master does not follow", 40)


@pytest.mark.parametrize("place", ["sentinel"], indirect=True)
def test_failovers_under_load_leave_nothing_stuck(site: Site, place: Place) -> None:
    """Every run that exists afterwards ends, no slot stays taken, every process lives on, and what is lost is the end of history."""
    schedulers, workers = site.start(2, 2)
    site.dag("load", LOAD)
    with Users(site) as users:
        users.go_on()
        for step in ("killed", "asked", "coordinated"):
            begun = time.monotonic()
            with users.window(step):
                old = fail_over(place, step)
                if old is None:
                    continue  # Sentinel learnt to wait for the replica with Valkey 9
                users.go_on()
                assert time.monotonic() - begun < OUTAGE_S + 10
                if step == "killed":
                    old.start()  # as a master, which it is not any more
                    users.go_on()
                all_follow(place)
                users.go_on()
        users.go_on()
    users.check()

    everything = all_ended(site)
    did = Counter((line.run, line.task) for line in site.trail() if line.word == "ended")
    assert all(did[run, task] for run in everything for task in LOAD)
    site.slots_free()
    for process in (*schedulers, *workers):
        assert process.alive and process.count("does not answer") + process.count("trying again") <= 20
    assert [process.stop() for process in (*schedulers, *workers)] == [0] * 4
    lost = users.lost(everything)
    again = sum(did[run, task] - 1 for run in everything for task in LOAD)
    print(f"{len(everything)} runs, acknowledged and lost {lost}, bodies run again {again}")
    assert lost.get("coordinated", 0) == 0


def fail_over(place: Place, how: str) -> Server | None:
    """The old master, when another leads; None if this server's sentinels can't do it so."""
    from redis.exceptions import ResponseError

    old = master(place)
    more = ("COORDINATED",) if how == "coordinated" else ()

    def taken() -> bool:
        try:
            place.sentinels[1].say("SENTINEL", "FAILOVER", "mine", *more)
        except ResponseError as error:
            if "wrong number" in str(error):
                raise NotImplementedError from error
            return False  # the last one is not quite over
        return True

    if how == "killed":
        old.kill(signal.SIGKILL)
    else:
        try:
            until(taken, "no sentinel wants to begin a failover", 30)
        except NotImplementedError:
            return None
    another_leads(place, old)
    return old


@pytest.mark.parametrize("place", ["sentinel"], indirect=True)
@pytest.mark.parametrize("protocol", [2, 3])
def test_connections_to_a_master_that_steps_down_are_given_up(place: Place, protocol: int) -> None:
    """READONLY did not happen; a waiting read ends at once; the next connection asks the sentinels again."""
    all_follow(place)
    old = master(place)
    clients = connect(Settings(redis=f"{place.url}?protocol={protocol}"), "test")
    key = f"{{rs:c}}:role{protocol}"
    first = clients.scripts.client_id()
    clients.scripts.set(key, 1)
    waiting = clients.reader.client_id()
    outcome: list[Exception] = []

    def wait() -> None:
        try:
            with translate():
                clients.reader.execute_command("XREAD", "BLOCK", 2000, "STREAMS", "{rs:c}:news", "0")
        except Unavailable as error:
            outcome.append(error)

    reader = threading.Thread(target=wait)
    reader.start()
    until(lambda: old.say("INFO", "clients")["blocked_clients"], "nobody waits")
    begun = time.monotonic()
    old.say("REPLICAOF", "127.0.0.1", next(s.port for s in place.servers if s is not old))
    reader.join(10)
    assert outcome and type(outcome[0]) is Unavailable and time.monotonic() - begun < 1
    with pytest.raises(Unavailable) as caught, translate():
        clients.scripts.incr(key)
    assert type(caught.value) is Unavailable  # not MayHaveHappened
    old.say("REPLICAOF", "NO", "ONE")
    assert clients.scripts.incr(key) == 2
    assert clients.scripts.client_id() != first and clients.reader.client_id() != waiting
    clients.close()


@pytest.mark.parametrize("place", ["replicated"], indirect=True)
def test_nodes_of_a_cluster_are_replaced_by_their_replicas(site: Site, place: Place) -> None:
    """One is killed and comes back as a replica, one is asked to step down: nothing is stuck, and everybody finds the new ones."""
    schedulers, workers = site.start(2, 2)
    site.dag("load", LOAD)
    killed, asked, _, heir, successor = place.servers
    with Users(site) as users:
        users.go_on()
        with users.window("killed"):
            killed.kill(signal.SIGKILL)
            until(lambda: heir.say("INFO", "replication")["role"] == "master", "nobody takes over")
            users.go_on()
            killed.start()
            until(lambda: killed.say("INFO", "replication")["role"] == "slave", "it does not follow")
        with users.window("asked"):
            successor.say("CLUSTER", "FAILOVER")
            until(lambda: asked.say("INFO", "replication")["role"] == "slave", "it does not step down")
            users.go_on()
        users.go_on()
    users.check()
    everything = all_ended(site)
    site.slots_free()
    assert [process.stop() for process in (*schedulers, *workers)] == [0] * 4
    lost = users.lost(everything)
    print(f"{len(everything)} runs, acknowledged and lost {lost}")
    assert lost["asked"] == 0
