"""Settings and Redis URLs: where a value comes from, what is refused, and that no password is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from redsched.errors import DefinitionError
from redsched.settings import Settings, load_settings, mask_url, parse_url

WEIRD = "p@ss:w/rd#1?x%20=+&"
ENCODED = "p%40ss%3Aw%2Frd%231%3Fx%2520%3D%2B%26"


def refused(url: str) -> str:
    with pytest.raises(DefinitionError) as caught:
        parse_url(url, "--redis")
    text = str(caught.value)
    assert text.startswith("--redis: ") and "\n" not in text
    return text


# ---- where values come from


def test_defaults(tmp_path: Path) -> None:
    found = load_settings({}, {}, tmp_path)
    assert found == Settings(data=tmp_path / ".redsched")


def test_cli_over_environment_over_file_over_default(tmp_path: Path) -> None:
    (tmp_path / "redsched.toml").write_text('namespace = "file"\nshards = 3\nlease_ms = "2s"\n')
    found = load_settings(
        {"namespace": "cli"}, {"REDSCHED_NAMESPACE": "env", "REDSCHED_SHARDS": "5"}, tmp_path
    )
    assert (found.namespace, found.shards, found.lease_ms, found.log_limit) == ("cli", 5, 2000, 1_048_576)


def test_none_on_the_command_line_and_empty_in_the_environment_mean_not_given(tmp_path: Path) -> None:
    found = load_settings({"namespace": None}, {"REDSCHED_NAMESPACE": ""}, tmp_path)
    assert found.namespace == "rs"


def test_pyproject_holds_settings_unless_redsched_toml_is_there(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.redsched]\nnamespace = "shared"\n')
    assert load_settings({}, {}, tmp_path).namespace == "shared"
    (tmp_path / "redsched.toml").write_text("shards = 2\n")
    assert load_settings({}, {}, tmp_path).namespace == "rs"


def test_data_is_relative_to_the_folder_and_knows_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert load_settings({"data": Path("x")}, {}, tmp_path).data == tmp_path / "x"
    assert load_settings({}, {"REDSCHED_DATA": "~/y"}, tmp_path).data == Path("/home/me/y")
    assert load_settings({}, {"REDSCHED_DATA": "/z"}, tmp_path).data == Path("/z")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("NAMESPACE", "a.b", "1 to 32 letters"),
        ("NAMESPACE", "a:b", "can't be a namespace"),
        ("NAMESPACE", "x" * 33, "can't be a namespace"),
        ("SHARDS", "0", "from 1 to 1024"),
        ("SHARDS", "3s", "whole number"),
        ("LEASE_MS", "3", "or with a unit as in 3s"),
        ("LEASE_MS", "1.5s", "whole number"),
        ("DB", "-1", "whole number"),
        ("REDIS_URL", "localhost:6379", "write redis://host:6379/0"),
        ("DATA", "a\0b", "path of a folder"),
    ],
)
def test_wrong_values_name_where_they_came_from(name: str, value: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=words) as caught:
        load_settings({}, {f"REDSCHED_{name}": value}, tmp_path)
    assert str(caught.value).startswith(f"REDSCHED_{name}: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shardz = 1", r"redsched.toml: unknown setting 'shardz' \(did you mean 'shards'\?\)"),
        ("shards = true", "redsched.toml: shards: True must be a whole number"),
        ("namespace = 7", "redsched.toml: namespace: must be text, not 7"),
        ("password = 7", r"password: must be text, not \*\*\*"),
        ("shards = ", "redsched.toml: not readable as TOML"),
        ('redis = "redis://u:a@b@h"', "redsched.toml: redis: .*percent-encoded"),
    ],
)
def test_wrong_files_say_what_is_wrong(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "redsched.toml").write_text(text)
    with pytest.raises(DefinitionError, match=words):
        load_settings({}, {}, tmp_path)


def test_an_unknown_setting_from_a_program_is_its_mistake(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="did you mean 'shards'"):
        load_settings({"shard": 1}, {}, tmp_path)


# ---- URLs


def test_the_parts_of_a_url() -> None:
    found = parse_url("redis://me:pw@db.example:7000/3?protocol=3&socket_timeout=1.5")
    assert (found.hosts, found.username, found.password, found.db) == ((("db.example", 7000),), "me", "pw", 3)
    assert found.options == {"protocol": 3, "socket_timeout": 1.5}
    assert parse_url("redis://").hosts == (("localhost", 6379),)
    assert parse_url("REDIS://[::1]:7").hosts == (("::1", 7),)
    secure = parse_url("rediss://h?ssl_ca_certs=/ca.pem&ssl_check_hostname=no")
    assert secure.tls and secure.options == {"ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False}


def test_unix_sockets() -> None:
    assert parse_url("unix:///run/a@b.sock?db=2").path == "/run/a@b.sock"
    found = parse_url("unix://me:pw@/run/x%20y.sock")
    assert (found.path, found.username, found.password, found.db) == ("/run/x y.sock", "me", "pw", 0)


def test_sentinels_and_clusters() -> None:
    found = parse_url("redis+sentinel://:pw@a,b:27000/mine/2?sentinel_password=other")
    assert (found.kind, found.hosts, found.service, found.db) == (
        "sentinel",
        (("a", 26379), ("b", 27000)),
        "mine",
        2,
    )
    assert found.password == "pw"
    cluster = parse_url("rediss+cluster://a:7000,b")
    assert (cluster.kind, cluster.tls, cluster.hosts) == ("cluster", True, (("a", 7000), ("b", 6379)))


@pytest.mark.parametrize("url", [f"redis://weird:{ENCODED}@h/3", f"rediss+sentinel://weird:{ENCODED}@h/s/3"])
def test_a_percent_encoded_password_is_taken_exactly(url: str) -> None:
    found = parse_url(url)
    assert (found.username, found.password, found.db) == ("weird", WEIRD, 3)


@pytest.mark.parametrize("source", ["cli", "environment", "file"])
def test_user_password_and_database_may_be_given_apart(source: str, tmp_path: Path) -> None:
    """RD-106: as text, not encoded, from each place."""
    given = {"redis": "redis://h:1/0", "username": "weird", "password": WEIRD, "db": "3"}
    cli = given if source == "cli" else {}
    env = {"REDSCHED_" + ("REDIS_URL" if k == "redis" else k.upper()): v for k, v in given.items()}
    if source == "file":
        lines = [f"{k} = {v if k == 'db' else repr(v)}\n" for k, v in given.items()]
        (tmp_path / "redsched.toml").write_text("".join(lines))
    found = load_settings(cli, env if source == "environment" else {}, tmp_path).address()
    assert (found.username, found.password, found.db) == ("weird", WEIRD, 3)


@pytest.mark.parametrize("char", list("@/#?[] ") + ["%zz", "%"])
@pytest.mark.parametrize("scheme", ["redis", "rediss", "unix", "redis+sentinel", "redis+cluster"])
def test_a_raw_reserved_character_in_a_password_is_refused_and_not_shown(char: str, scheme: str) -> None:
    tail = "/run/x.sock" if scheme == "unix" else "h:6379/0"
    text = refused(f"{scheme}://me:sec{char}ret@{tail}")
    assert "percent-encode" in text and "sec" not in text and "ret" not in text


def test_the_raw_form_of_the_case() -> None:
    text = refused(f"redis://weird:{WEIRD}@127.0.0.1:6379/3")
    assert "percent-encode" in text and "--password" in text
    assert not any(part in text for part in ("ss:w", "rd#1", "x%20="))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("valkey://h", "no Redis URL"),
        ("redis://user:secret", "no host:port"),
        ("redis://h:99999", "no host:port"),
        ("redis://h/abc", "must be a number"),
        ("redis://h/1/2", "must be a number"),
        ("redis://h/1?db=2", "keep one"),
        ("redis://a,b", "takes one host"),
        ("redis+sentinel://a", "names the service"),
        ("redis+cluster://a/1", "only database 0"),
        ("unix://run/x.sock", "three slashes"),
        ("redis://h?protocl=3", "did you mean 'protocol'"),
        ("redis://h?protocol=4", "write 2 or 3"),
        ("redis://h?socket_timeout=0", "seconds from 0.05"),
        ("redis://h?ssl_ca_certs=/x", "write rediss"),
        ("redis://h?password=secret", "no URL option"),
        ("rediss://h?ssl_password=", "write a value"),
        ("redis://me:%ff%fe@h", "not UTF-8"),
        ("redis://h/0#x", "no meaning"),
    ],
)
def test_what_would_be_cut_or_misread_is_refused(url: str, words: str) -> None:
    text = refused(url)
    assert words in text and "secret" not in text


def test_a_cluster_takes_no_database_given_apart(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="--db: a Redis Cluster has only database 0"):
        load_settings({"redis": "redis+cluster://h", "db": 1}, {}, tmp_path)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://me:secret@h:6379/0", "redis://me:***@h:6379/0"),
        ("redis://:secret@h", "redis://:***@h"),
        ("redis://secret@h", "redis://***@h"),
        ("redis://me:se@cr/et@h/0", "redis://me:***@h/0"),
        ("redis://me:secret", "redis://***"),
        ("redis+cluster://a:1,b:2", "redis+cluster://a:1,b:2"),
        ("redis://[::1]:6379", "redis://[::1]:6379"),
        ("unix:///run/a@b.sock?db=1", "unix:///run/a@b.sock?db=1"),
        ("unix://me:secret@/run/x", "unix://me:***@/run/x"),
        ("redis://h?ssl_password=secret&db=1", "redis://h?ssl_password=***&db=1"),
        ("me:secret@h", "***@h"),
    ],
)
def test_mask_url(url: str, shown: str) -> None:
    assert mask_url(url) == shown


def test_settings_show_no_password() -> None:
    settings = Settings(redis="redis://me:secret@h", password="secret")
    assert "secret" not in repr(settings) + repr(settings.address()) + str(settings)
