"""What only a cluster has: reads of many slots, pipelines over nodes, slots that move, nodes that forget or die."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from redsched.errors import MayHaveHappened, Unavailable
from redsched.keys import Keys
from redsched.settings import Settings
from redsched.store import Store
from redsched.store.connect import connect, translate
from redsched.store.pool import Hint, Offer
from tests.conftest import Server, _free_port
from tests.processes import Site, until
from tests.proxy import Proxy

from .places import Place, make_cluster
from .users import LOAD, Users, all_ended

pytestmark = pytest.mark.parametrize("place", ["cluster"], indirect=True)
SHARDS = 12


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    made = Store.open(Settings(redis=place.url, namespace="t" + secrets.token_hex(4), shards=SHARDS), "test")
    yield made
    made.close()


def quiet(_: bool) -> None:
    pass


def offer(store: Store, pool: str, run: str) -> None:
    store.pool.configure(pool, 1000)
    offered = Offer(f"d/{run}/0/1", pool, "1,0,g,1;1,,manual,")
    assert store.pool.offer(pool, 0, 1, "1-0", [offered]) == "T"


def calls(place: Place, command: str) -> int:
    stats = [server.say("INFO", "commandstats") for server in place.servers]
    return sum(s.get(f"cmdstat_{command}", {"calls": 0})["calls"] for s in stats)


# ---- reads


def test_a_wait_for_many_shards_asks_once_and_hears_of_each(store: Store, place: Place) -> None:
    """Nothing polls: the reads of one wait stand for the next ones, and each shard's news ends the wait at once."""
    shards = list(range(SHARDS))
    assert store.shard.wait(shards, 1, quiet) == []
    before = calls(place, "xread")
    for _ in range(20):
        assert store.shard.wait(shards, 5, quiet) == []
    assert calls(place, "xread") == before
    for shard in shards:
        (inbox,) = store.shard.keys(shard, "inbox")
        adding = threading.Timer(0.02, store.client.xadd, (inbox, {"type": "wake"}))
        adding.start()
        begun = time.monotonic()
        assert store.shard.wait(shards, 3000, quiet) == [shard]
        assert time.monotonic() - begun < 2
        adding.join()
        assert store.shard.wait(shards, 0, quiet) == [shard]
        store.client.delete(inbox)
        assert store.shard.wait(shards, 0, quiet) == []
    few = store.shard.wait([1, 2], 5, quiet)
    assert few == [] and set(store.clients.reads._standing) == {
        store.shard.keys(s, "inbox")[0] for s in (1, 2)
    }  # type: ignore[union-attr]


def test_a_read_of_many_pools_takes_from_each_and_leaves_no_reader_behind(store: Store) -> None:
    """What comes to a pool after the read is over goes to who asks then, not to a read that nobody hears."""
    pools = [f"pool{i}" for i in range(4)]
    for pool in pools:
        store.pool.configure(pool, 10)
    assert store.pool.read("w1", pools, 1, 1) == []
    for turn, pool in enumerate(pools):
        later = threading.Timer(0.02, offer, (store, pool, f"a{turn}"))
        later.start()
        begun = time.monotonic()
        assert [h.pool for h in store.pool.read("w1", pools, 1, 3000)] == [pool]
        assert time.monotonic() - begun < 2
        later.join()
        for other in pools:
            offer(store, other, f"b{turn}")
        assert sorted(h.pool for h in store.pool.read("w2", pools, 1, 1)) == pools
    taken = [h for p in pools for h in store.pool.read("w1", [p], 100, 0, history=True)]
    assert [h.attempt_id for h in taken] == [f"d/a{turn}/0/1" for turn in range(4)]


def test_hints_that_come_while_a_read_is_withdrawn_are_not_lost(store: Store) -> None:
    """All pools get work at the same moment, again and again: each hint is heard by exactly one reader."""
    pools = [f"busy{i}" for i in range(3)]
    for pool in pools:
        store.pool.configure(pool, 1000)
    heard: list[Hint] = []
    rounds = 40

    def feed() -> None:
        own = Store.open(store.settings, "feeder")
        for i in range(rounds):
            for pool in pools:
                offer(own, pool, f"r{i}")
        own.close()

    feeder = threading.Thread(target=feed)
    feeder.start()
    end = time.monotonic() + 30
    while len(heard) < rounds * len(pools):
        assert time.monotonic() < end, f"{len(heard)} of {rounds * len(pools)} heard"
        heard += store.pool.read("w1", pools, 1, 500)
    feeder.join()
    assert len({(h.pool, h.attempt_id) for h in heard}) == len(heard) == rounds * len(pools)


def test_a_pool_whose_stream_vanished_is_made_again_and_the_others_lose_nothing(store: Store) -> None:
    pools = ["whole", "broken"]
    for pool in pools:
        offer(store, pool, "r1")
    store.client.delete(store.keys.pool("broken") + "stream")
    found: list[Hint] = []
    until(lambda: found.extend(store.pool.read("w1", pools, 9, 100)) or len(found) == 2, f"only {found}", 10)
    assert sorted(h.pool for h in found) == sorted(pools)


# ---- calls


def test_one_clock_a_cell(store: Store, place: Place) -> None:
    """TIME in a pipeline goes to the node of the pipeline's cell; the installation's time is the control cell's."""
    owners = {store.client.get_node_from_key(store.keys.pool(p)).port: p for p in map(str, range(30))}
    assert owners.keys() == {server.port for server in place.servers}
    for port, pool in owners.items():
        server = next(s for s in place.servers if s.port == port)
        store.pool.configure(pool, 1)
        before = server.say("INFO", "commandstats").get("cmdstat_time", {"calls": 0})["calls"]
        store.pool.show(pool)
        assert server.say("INFO", "commandstats")["cmdstat_time"]["calls"] == before + 1


def test_a_node_that_lost_its_functions_gets_them_again(store: Store, place: Place) -> None:
    shards = list(range(SHARDS))
    for server in place.servers:
        server.say("FUNCTION", "FLUSH")
        found = [store.shard.acquire(s, f"s{server.port}", "") for s in shards]
        assert len(found) == SHARDS
        calls = [("shard/release", store.shard.keys(s, "owner"), ("nobody:0",)) for s in shards]
        assert [type(x) for x in store.scripts.many(calls)] == [int] * SHARDS


def test_a_pipeline_over_nodes_is_never_sent_twice(place: Place, tmp_path: Path) -> None:
    """One node's reply is lost: each call ran once, and the caller knows that it can't tell."""
    with ExitStack() as stack:
        ports = [_free_port() for _ in range(3)]
        proxies = [stack.enter_context(Proxy(f"redis://127.0.0.1:{port}")) for port in ports]
        nodes = []
        for number, (port, proxy) in enumerate(zip(ports, proxies, strict=True)):
            (tmp_path / str(number)).mkdir()
            told = str(proxy.url.rpartition(":")[2])
            options = ("--cluster-announce-port", told, "--cluster-announce-bus-port", str(port + 10000))
            nodes.append(Server(tmp_path / str(number), "--cluster-enabled", "yes", *options, port=port))
            stack.callback(nodes[-1].kill)
        make_cluster(nodes)
        url = "redis+cluster://" + ",".join(p.url.removeprefix("redis://") for p in proxies)
        client: Any = connect(Settings(redis=url), "test").scripts
        owner = {client.get_node_from_key(f"{{{i}}}").port: f"{{{i}}}" for i in range(50)}
        keys = [owner[int(p.url.rpartition(":")[2])] for p in proxies]
        proxies[1].cut_next_reply("INCR")
        pipe = client.pipeline(transaction=False)
        for key in keys * 2:
            pipe.incr(key)
        with pytest.raises(MayHaveHappened), translate():
            pipe.execute()
        assert [client.get(key) for key in keys] == [b"2"] * 3
        client.close()


def test_a_script_waits_until_its_slot_has_moved(store: Store, place: Place) -> None:
    """Half of a cell on each node is what a script must never see; a plain read finds its key on either."""
    store.pool.configure("moving", 5)
    before = store.pool.show("moving")
    slot = key_slot(store.keys.pool("moving").encode())
    with moving(place, slot) as source:
        with pytest.raises(Unavailable, match="TRYAGAIN") as caught:
            store.pool.configure("moving", 6)
        assert type(caught.value) is Unavailable
        assert store.pool.show("moving") == before
        assert source.say("CLUSTER", "GETKEYSINSLOT", slot, 10), "nothing has moved yet"
    assert store.pool.show("moving") == before
    assert store.pool.configure("moving", 6) is False
    assert store.pool.show("moving")["slots"] == 6


# ---- changes of the cluster, under load


@contextmanager
def moving(place: Place, slot: int) -> Iterator[Server]:
    """From its node to the next one, key by key at the end of the block, as an operator's tool does."""
    source, target, third = by_slot(place, slot)
    ids = {s.port: s.say("CLUSTER", "MYID") for s in (source, target)}
    target.say("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source.port])
    source.say("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target.port])
    yield source
    while keys := source.say("CLUSTER", "GETKEYSINSLOT", slot, 10):
        source.say("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
    for server in (target, source, third):
        server.say("CLUSTER", "SETSLOT", slot, "NODE", ids[target.port])


def by_slot(place: Place, slot: int) -> list[Server]:
    """The owner of the slot first."""
    for first, last, (_, port, *_), *_ in place.servers[0].say("CLUSTER", "SLOTS"):
        if first <= slot <= last:
            at = next(i for i, s in enumerate(place.servers) if s.port == port)
            return place.servers[at:] + place.servers[:at]
    raise AssertionError(f"nobody has slot {slot}")


def test_runs_go_on_while_slots_move_and_a_node_is_killed(place: Place, tmp_path: Path) -> None:
    with Site(tmp_path / "site", None, redis=place.url) as site:
        schedulers, workers = site.start(2, 2, pools=("default", "narrow"))
        site.dag("load", LOAD)
        keys = Keys(site.settings.namespace)
        cells = [
            keys.control,
            keys.pool("default"),
            keys.pool("narrow"),
            keys.shard(site.client.store.shard.of("load")),
        ]
        with Users(site) as users:
            users.go_on()
            for cell in cells:
                with moving(place, key_slot(cell.encode())):
                    pass
                users.go_on()
            place.servers[0].restart()
            users.go_on()
        users.check()
        everything = all_ended(site)
        assert {run for u in users.all for run in u.told} == set(everything)
        site.slots_free()
        assert [p.stop() for p in (*schedulers, *workers)] == [0] * 4
