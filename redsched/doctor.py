"""`redsched doctor`: is this installation well? Each check says what it found and what to do.

It asks nothing that needs special rights without taking "no" for an answer: what a managed Redis forbids is said, not failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypedDict

from redsched.errors import RedschedError, Unavailable
from redsched.settings import Settings, mask_url

if TYPE_CHECKING:
    from redsched.store import Store

OLDEST: Final = (7, 0)
RIGHTS: Final = "ACL SETUSER name on >password ~{rs:* &{rs:* +@all -@dangerous -@admin"


class Check(TypedDict):
    """One finding. `fix` is what to do, '' if there is nothing to do."""

    check: str
    ok: bool
    detail: str
    fix: str


def checks(settings: Settings) -> list[Check]:
    """All checks in order; after the first that finds no Redis there is nothing more to ask."""
    from redsched.store import Store

    try:
        store = Store.open(settings, "doctor")
        begun = time.monotonic()
        with store.translate():
            store.client.ping()
        ms = (time.monotonic() - begun) * 1000
    except RedschedError as error:
        return [_found("redis", False, str(error), "start it, or correct the URL")]
    where = f"{mask_url(settings.redis or '')} answers in {ms:.1f} ms"
    return [_found("redis", True, where), *(_guarded(check, store) for check in ALL)]


def check_server(store: Store) -> None:
    """For processes that start: refuse a server that would lose or mangle state. Raises Unavailable."""
    for check in (version, memory):
        found = _guarded(check, store)
        if not found["ok"]:
            raise Unavailable(f"{found['detail']}; {found['fix']}")


def _found(check: str, ok: bool, detail: str, fix: str = "") -> Check:
    return {"check": check, "ok": ok, "detail": detail, "fix": fix}


def _guarded(check: Callable[[Store], Check], store: Store) -> Check:
    try:
        return check(store)
    except RedschedError as error:
        return _found(check.__name__, False, str(error), "see the message")


def _info(store: Store, section: str) -> dict[str, Any] | None:
    """INFO, or None where this user may not ask."""
    try:
        with store.translate():
            return dict(store.client.info(section))
    except RedschedError as error:
        if "NOPERM" in str(error) or "unknown command" in str(error):
            return None
        raise


def version(store: Store) -> Check:
    info = _info(store, "server")
    if info is None:
        return _found("version", True, "this user may not ask for it (INFO); 7.0 or newer is needed")
    name, text = (
        ("Valkey", info["valkey_version"])
        if "valkey_version" in info
        else ("Redis", str(info.get("redis_version", "0")))
    )
    number = tuple(int(x) for x in str(info.get("redis_version", "0.0")).split(".")[:2])
    return _found("version", number >= OLDEST, f"{name} {text}", "7.0 or newer is needed: upgrade the server")


def memory(store: Store) -> Check:
    info = _info(store, "memory")
    if info is None:
        return _found("memory", True, "this user may not ask (INFO); maxmemory-policy must be noeviction")
    limit, policy = int(info.get("maxmemory", 0)), str(info.get("maxmemory_policy", "noeviction"))
    used = int(info.get("used_memory", 0))
    if limit and policy != "noeviction":
        return _found(
            "memory",
            False,
            f"maxmemory-policy {policy} throws keys away, and with them runs",
            "CONFIG SET maxmemory-policy noeviction (and in the server's configuration file)",
        )
    if limit and used > limit * 0.9:
        return _found(
            "memory",
            False,
            f"{used / limit:.0%} of maxmemory are used",
            "raise maxmemory or lower retention_runs",
        )
    room = f"{used / 1e6:.1f} MB used" + (f" of {limit / 1e6:.0f} MB" if limit else ", no limit")
    return _found("memory", True, f"{room}, nothing is evicted")


def persistence(store: Store) -> Check:
    info = _info(store, "persistence")
    if info is None:
        return _found("persistence", True, "this user may not ask (INFO); the append-only file should be on")
    if int(info.get("aof_enabled", 0)):
        ok = info.get("aof_last_write_status", "ok") == "ok"
        return _found(
            "persistence",
            ok,
            "append-only file" + ("" if ok else ": the last write failed"),
            "look for a full disk",
        )
    detail = "no append-only file: a restart of Redis loses what came after the last snapshot"
    return _found("persistence", True, detail, "CONFIG SET appendonly yes")


def scripts(store: Store) -> Check:
    """A PING that answers is not enough: the scripts must be known, or be taken when they are loaded."""
    store.scripts.call("shard/release", store.shard.keys(0, "owner"), "doctor:0")
    return _found("scripts", True, "scripts run")


def rights(store: Store) -> Check:
    key = store.keys.control + "doctor"
    try:
        with store.translate():
            store.client.set(key, "1", px=1000)
    except RedschedError as error:
        return _found("rights", False, str(error), f"grant what is missing; a user that is enough: {RIGHTS}")
    return _found("rights", True, f"may write below {{{store.keys.namespace}:…}}")


def clocks(store: Store) -> Check:
    with store.translate():
        seconds, micros = store.client.time()
    skew = time.time() - (seconds + micros / 1e6)
    return _found("clocks", True, f"this host is {skew:+.2f} s off Redis' clock, which alone decides")


def schedulers(store: Store) -> Check:
    alive = [n for n, left in store.control.schedulers().items() if left > 0]
    owned = sum(1 for row in store.shard.overview() if row["token"].rpartition(":")[0] in alive)
    ok = bool(alive) and owned == store.shards
    detail = f"{len(alive)} alive, {owned} of {store.shards} shards owned"
    return _found("schedulers", ok, detail, "run `redsched scheduler` (or `redsched up`)")


def workers(store: Store) -> Check:
    found = store.control.workers()
    served = {p for w in found for p in w.get("pools", [])}
    idle = []
    for pool in store.pool.names():
        shown = store.pool.show(pool)
        if pool not in served and (shown["waiting"] or shown["used"]):
            idle.append(pool)
    if idle:
        fix = f"run `redsched worker --pool {idle[0]}`"
        return _found("workers", False, f"nobody serves pool {', '.join(idle)}, where tasks wait", fix)
    return _found("workers", bool(found), f"{len(found)} alive", "run `redsched worker` (or `redsched up`)")


ALL: Final = (version, memory, persistence, scripts, rights, clocks, schedulers, workers)
