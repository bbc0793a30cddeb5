"""`redsched doctor`: is this installation well? Each check says what it found and what to do.

It asks nothing that needs special rights without taking "no" for an answer: what a managed Redis forbids is said, not
failed; and it looks up what it may ask before it asks, so that no ACL LOG grows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypedDict

from redsched.errors import RedschedError, Unavailable
from redsched.settings import Settings, mask_url
from redsched.store.connect import allowed, server

if TYPE_CHECKING:
    from redsched.store import Store

OLDEST: Final = (7, 0)
# A user that is enough; for other namespaces than rs, write theirs.
ENOUGH: Final = "ACL SETUSER {user} on >PASSWORD ~{{{namespace}:* +@all -@dangerous -@admin"
# Every command that redsched says, in a harmless form for `allowed`. INFO is welcome but not needed.
CALLS: Final = (
    *("PING", "TIME", "FCALL f 1 KEY", "FUNCTION LOAD s"),
    *("GET KEY", "GETRANGE KEY 0 1", "SET KEY v", "SETRANGE KEY 0 v", "INCR KEY", "DEL KEY", "UNLINK KEY"),
    *("EXISTS KEY", "EXPIRE KEY 1", "PERSIST KEY", "RENAME KEY KEY"),
    *("HGET KEY f", "HMGET KEY f", "HGETALL KEY", "HKEYS KEY", "HLEN KEY", "HEXISTS KEY f"),
    *("HSET KEY f v", "HSETNX KEY f v", "HDEL KEY f", "HINCRBY KEY f 1"),
    *("LLEN KEY", "LRANGE KEY 0 1", "LTRIM KEY 0 1", "RPUSH KEY v"),
    *("SCAN 0", "HSCAN KEY 0", "SSCAN KEY 0"),
    *("SADD KEY m", "SREM KEY m", "SCARD KEY", "SISMEMBER KEY m", "SMEMBERS KEY", "SRANDMEMBER KEY"),
    "SMISMEMBER KEY m",
    *(
        "ZADD KEY 1 m",
        "ZREM KEY m",
        "ZCARD KEY",
        "ZSCORE KEY m",
        "ZMSCORE KEY m",
        "ZRANK KEY m",
        "ZRANGE KEY 0 1",
    ),
    *("ZREVRANGE KEY 0 1", "ZRANGEBYSCORE KEY 0 1", "ZPOPMIN KEY"),
    *("ZREMRANGEBYRANK KEY 0 1", "ZREMRANGEBYSCORE KEY 0 1"),
    *(
        "XADD KEY * f v",
        "XREAD STREAMS KEY 0",
        "XREADGROUP GROUP g c STREAMS KEY 0",
        "XACK KEY g 1",
        "XDEL KEY 1",
    ),
    *(
        "XLEN KEY",
        "XRANGE KEY - +",
        "XREVRANGE KEY + -",
        "XTRIM KEY MAXLEN 1",
        "XPENDING KEY g",
        "XINFO CONSUMERS KEY g",
        "XINFO GROUPS KEY",
    ),
    *("XGROUP CREATE KEY g 0", "XGROUP DELCONSUMER KEY g c"),
)


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
    except RedschedError as error:
        return [_found("redis", False, str(error), "start it, or correct the URL")]
    try:
        first = _guarded(redis, store)
        return [first, *(_guarded(check, store) for check in ALL)] if first["ok"] else [first]
    finally:
        store.close()


def check_server(store: Store) -> list[str]:
    """For processes that start: refuse a server that would lose or mangle state. Returns what is only to be said.

    Raises Unavailable.
    """
    warnings = []
    for check, needed in ((version, True), (eviction, True), (memory, False), (persistence, False)):
        found = check(store)
        if needed and not found["ok"]:
            raise Unavailable(f"{found['detail']}; {found['fix']}")
        if found["fix"]:
            warnings.append(f"{found['detail']}; {found['fix']}")
    return warnings


def _found(check: str, ok: bool, detail: str, fix: str = "") -> Check:
    return {"check": check, "ok": ok, "detail": detail, "fix": fix}


def _guarded(check: Callable[[Store], Check], store: Store) -> Check:
    try:
        return check(store)
    except RedschedError as error:
        return _found(check.__name__, False, str(error), "see the message")


def _info(store: Store, section: str) -> dict[str, Any] | None:
    """INFO, or None where this user may not ask."""
    if not allowed(store.client, store.keys.control + "doctor", ["INFO"])[0]:
        return None
    try:
        with store.translate():
            return dict(store.client.info(section))
    except RedschedError as error:
        if "NOPERM" in str(error) or "unknown command" in str(error):
            return None
        raise


def redis(store: Store) -> Check:
    begun = time.monotonic()
    try:
        with store.translate():
            store.client.ping()
    except RedschedError as error:
        return _found("redis", False, str(error), "start it, or correct the URL")
    ms = (time.monotonic() - begun) * 1000
    return _found("redis", True, f"{mask_url(store.settings.redis or '')} answers in {ms:.1f} ms")


def version(store: Store) -> Check:
    found = server(store.client)
    if found.number == (0, 0):
        return _found("version", True, f"{found.name} does not say its version; 7.0 or newer is needed")
    fix = "" if found.number >= OLDEST else "7.0 or newer is needed: upgrade the server"
    return _found("version", not fix, f"{found.name} {found.version}", fix)


def eviction(store: Store) -> Check:
    info = _info(store, "memory")
    if info is None:
        return _found("eviction", True, "this user may not ask (INFO); maxmemory-policy must be noeviction")
    limit, policy = int(info.get("maxmemory", 0)), str(info.get("maxmemory_policy", "noeviction"))
    if not limit or policy == "noeviction":
        return _found("eviction", True, f"nothing is evicted ({policy}, {'no ' * (not limit)}maxmemory)")
    detail = f"maxmemory-policy {policy} throws keys away, and with them runs"
    fix = "CONFIG SET maxmemory-policy noeviction (and in the server's configuration file)"
    return _found("eviction", False, detail, fix)


def memory(store: Store) -> Check:
    info = _info(store, "memory")
    if info is None:
        return _found("memory", True, "this user may not ask (INFO)")
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    detail = f"{used / 1e6:.1f} MB used" + (f" of {limit / 1e6:.1f} MB" if limit else ", no limit")
    fix = "raise maxmemory or lower retention_runs" if limit and used > limit * 0.9 else ""
    return _found("memory", not fix, detail, fix)


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
            "" if ok else "look for a full disk",
        )
    detail = "no append-only file: a restart of Redis loses what came after the last snapshot"
    return _found("persistence", True, detail, "CONFIG SET appendonly yes")


def scripts(store: Store) -> Check:
    """A PING that answers is not enough: the scripts must be known, or be taken when they are loaded."""
    store.scripts.call("shard/release", store.shard.keys(0, "owner"), "doctor:0")
    return _found("scripts", True, "scripts run")


def namespace(store: Store) -> Check:
    """A write is really tried: memory, disk, replicas and keys all have a say in it."""
    with store.translate():
        store.client.set(store.keys.control + "doctor", "1", px=1000)
    return _found("namespace", True, f"may write below {{{store.keys.namespace}:…}}")


def rights(store: Store) -> Check:
    answers = allowed(store.client, store.keys.control + "doctor", CALLS)
    missing = [call.partition(" KEY")[0] for call, may in zip(CALLS, answers, strict=True) if not may]
    if not missing:
        return _found("rights", True, f"all {len(CALLS)} commands are allowed")
    user = store.settings.address().username or "default"
    enough = ENOUGH.format(user=user, namespace=store.keys.namespace)
    return _found(
        "rights", False, f"user '{user}' may not say {', '.join(missing)}", f"a user that is enough: {enough}"
    )


def clocks(store: Store) -> Check:
    begun = time.time()
    with store.translate():
        seconds, micros = store.client.time()
    skew = (begun + time.time()) / 2 - (seconds + micros / 1e6)
    return _found("clocks", True, f"this host is {skew:+.2f} s off Redis' clock, which alone decides")


def schedulers(store: Store) -> Check:
    alive = [n for n, left in store.control.schedulers().items() if left > 0]
    owned = sum(1 for row in store.shard.overview() if row["token"].rpartition(":")[0] in alive)
    ok = bool(alive) and owned == store.shards
    detail = f"{len(alive)} alive, {owned} of {store.shards} shards owned"
    return _found("schedulers", ok, detail, "" if ok else "run `redsched scheduler` (or `redsched up`)")


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
    return _found(
        "workers",
        bool(found),
        f"{len(found)} alive",
        "" if found else "run `redsched worker` (or `redsched up`)",
    )


# Those that need more of redsched come last.
ALL: Final = (
    *(version, eviction, memory, persistence, rights, namespace, scripts, clocks),
    *(schedulers, workers),
)
