"""The doctor and the gate at a start: what they find, and that finding it needs no rights and leaves no trace."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from redsched.doctor import CALLS, Check, check_server, checks
from redsched.errors import Unavailable
from redsched.settings import Settings
from redsched.store import Store
from redsched.store.scripts import lua_root
from tests.conftest import Server

from .harness import Engine

RESTRICTED = ("on", ">pw", "~{rs:*", "+@all", "-@dangerous", "-@admin")
NewServer = Callable[..., Server]


def found(settings: Settings) -> dict[str, Check]:
    return {check["check"]: check for check in checks(settings)}


def gate(settings: Settings) -> list[str]:
    store = Store.open(settings, "test")
    try:
        return check_server(store)
    finally:
        store.close()


def restricted(server: Server, *rights: str) -> Settings:
    server.say("ACL", "SETUSER", "rs", "reset", *(rights or RESTRICTED))
    server.say("ACL", "LOG", "RESET")
    return Settings(redis=server.url.replace("://", "://rs:pw@"))


def test_without_redis_the_doctor_says_one_thing() -> None:
    (only,) = checks(Settings(redis="redis://127.0.0.1:1"))
    assert not only["ok"] and "can't be reached" in only["detail"] and only["fix"]
    (only,) = checks(Settings())
    assert "redsched up" in only["detail"]


def test_a_good_server_passes_all_that_is_about_the_server(new_server: NewServer) -> None:
    server = new_server("--appendonly", "yes")
    well = found(Settings(redis=server.url))
    about = (
        "redis",
        "version",
        "eviction",
        "memory",
        "persistence",
        "rights",
        "namespace",
        "scripts",
        "clocks",
    )
    assert [name for name in about if not well[name]["ok"] or well[name]["fix"]] == []
    assert " ms" in well["redis"]["detail"] and well["clocks"]["detail"].startswith("this host is")
    assert not well["schedulers"]["ok"] and "redsched scheduler" in well["schedulers"]["fix"]
    assert not well["workers"]["ok"] and "redsched worker" in well["workers"]["fix"]
    assert gate(Settings(redis=server.url)) == []


def test_no_persistence_is_said_and_not_refused(new_server: NewServer) -> None:
    url = new_server().url
    persistence = found(Settings(redis=url))["persistence"]
    assert persistence["ok"] and "CONFIG SET appendonly yes" in persistence["fix"]
    assert any("append-only" in warning for warning in gate(Settings(redis=url)))


def test_an_evicting_server_is_refused_at_the_start(new_server: NewServer) -> None:
    server = new_server("--maxmemory", "200mb", "--maxmemory-policy", "allkeys-lru")
    assert not found(Settings(redis=server.url))["eviction"]["ok"]
    with pytest.raises(Unavailable, match=r"allkeys-lru.*CONFIG SET maxmemory-policy noeviction"):
        gate(Settings(redis=server.url))
    server.say("CONFIG", "SET", "maxmemory", "0")
    gate(Settings(redis=server.url))


def test_a_full_server_is_not_refused_because_it_may_recover(new_server: NewServer) -> None:
    server = new_server()
    server.say("CONFIG", "SET", "maxmemory", "100kb")
    full = found(Settings(redis=server.url))
    assert not full["memory"]["ok"] and not full["namespace"]["ok"] and "OOM" in full["namespace"]["detail"]
    assert any("maxmemory" in warning for warning in gate(Settings(redis=server.url)))


def test_a_replica_is_seen_by_what_it_refuses(new_server: NewServer) -> None:
    server = new_server()
    server.say("REPLICAOF", "127.0.0.1", 1)
    assert "READONLY" in found(Settings(redis=server.url))["namespace"]["detail"]


def test_an_old_server_is_refused(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from redsched import doctor
    from redsched.store.connect import Server as Version

    monkeypatch.setattr(doctor, "server", lambda _client: Version("Redis", "6.2.7", (6, 2)))
    with pytest.raises(Unavailable, match=r"Redis 6\.2\.7; 7\.0 or newer"):
        gate(Settings(redis=redis_url))
    monkeypatch.setattr(doctor, "server", lambda _client: Version("Redis", "0", (0, 0)))
    gate(Settings(redis=redis_url))


def test_a_restricted_user_is_enough_and_leaves_no_line_in_the_acl_log(new_server: NewServer) -> None:
    """RD-107: without INFO and CONFIG, and with our keys only, everything works."""
    server = new_server()
    settings = restricted(server)
    assert gate(settings) == []
    checked = found(settings)
    assert checked["eviction"]["ok"] and "may not ask" in checked["eviction"]["detail"]
    assert [c for c in checked.values() if not c["ok"] and c["check"] not in ("schedulers", "workers")] == []
    engine = Engine(settings)
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}})
    run = engine.client.trigger("d")["run"]
    engine.settle()
    assert set(engine.states("d", run).values()) == {"success"}
    engine.close()
    assert server.say("ACL", "LOG") == []


def test_missing_commands_are_named_all_at_once(new_server: NewServer) -> None:
    server = new_server()
    settings = restricted(server, *RESTRICTED, "-xadd", "-zpopmin")
    rights = found(settings)["rights"]
    assert not rights["ok"] and rights["detail"] == "user 'rs' may not say ZPOPMIN, XADD"
    assert rights["fix"].endswith("ACL SETUSER rs on >PASSWORD ~{rs:* +@all -@dangerous -@admin")
    assert server.say("ACL", "LOG") == []


def test_a_missing_key_pattern_is_named(new_server: NewServer) -> None:
    server = new_server()
    settings = restricted(server, "on", "nopass", ">pw", "~other:*", "+@all", "-@dangerous")
    assert "~{rs:*" in found(settings)["namespace"]["detail"]


def test_scripts_that_can_not_run_are_seen_though_the_ping_is_green(new_server: NewServer) -> None:
    """RD-101: health is red if scripts can't be run."""
    server = new_server()
    settings = restricted(server, *RESTRICTED, "-fcall")
    checked = found(settings)
    assert (
        checked["redis"]["ok"] and not checked["scripts"]["ok"] and "+fcall" in checked["scripts"]["detail"]
    )


def test_the_list_of_rights_holds_every_command_of_the_scripts() -> None:
    known = {re.split(r" (?:KEY|\d|s\b)", call)[0] for call in CALLS}
    pattern = re.compile(r"redis\.p?call\(\s*'(\w+)'(?:,\s*'([A-Z]+)')?")
    said = set()
    for path in lua_root().rglob("*.lua"):
        for word, sub in pattern.findall(path.read_text()):
            container = word in ("XGROUP", "XINFO", "SCRIPT")
            said.add(f"{word} {sub}" if container else word)
    assert said <= known, f"add to CALLS: {sorted(said - known)}"


def test_a_password_is_in_no_finding(new_server: NewServer) -> None:
    server = new_server("--requirepass", "se%20cret")
    for password, right in (("se%2520cret", True), ("wrong-secret", False)):
        found = checks(Settings(redis=server.url.replace("://", f"://:{password}@")))
        assert found[0]["ok"] == right and "cret" not in str(found)
