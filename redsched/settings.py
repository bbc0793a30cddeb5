"""Where Redis is, and the few numbers of an installation: CLI > environment > file > default.

Knows how a Redis URL is written and read, and that its password is never shown; never imports redis itself.
Every wrong value is a DefinitionError that says where it came from and what to write.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from redsched.errors import DefinitionError

SCHEMES: Final = (
    "redis",
    "rediss",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)
URL_HELP: Final = (
    "write redis://host:6379/0, rediss://…, unix:///path/redis.sock, "
    "redis+sentinel://h1:26379,h2:26379/service/0 or redis+cluster://h1:7000,h2:7000"
)
ENCODE_HELP: Final = (
    "a password in a URL must be percent-encoded (@ is %40, : %3A, / %2F, # %23, ? %3F, % %25, space %20); "
    "or give it apart: --username/--password, REDSCHED_USERNAME/REDSCHED_PASSWORD, or username/password in the file"
)
NAMESPACE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,31}")
TEXT_OPTIONS: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password")
OPTIONS: Final = (
    *("db", "protocol", "socket_timeout", "socket_connect_timeout"),
    *("ssl_cert_reqs", "ssl_check_hostname", *TEXT_OPTIONS, "sentinel_username", "sentinel_password"),
)
SECRET_OPTION: Final = re.compile(r"([?&][^=&#]*password=)[^&#]*", re.IGNORECASE)
TIMES: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# Least and greatest value of each number, so that a slip (a lease of 3 ms) is refused and not run.
BOUNDS: Final[dict[str, tuple[int, int]]] = {
    "shards": (1, 1024),
    "lease_ms": (200, 600_000),
    "worker_lease_ms": (500, 3_600_000),
    "result_limit": (1, 67_108_864),
    "params_limit": (1, 67_108_864),
    "log_limit": (1024, 67_108_864),
    "retention_runs": (1, 100_000_000),
    "retention_age_ms": (1000, 315_360_000_000),
    "db": (0, 1_000_000),
}


@dataclass(frozen=True, slots=True)
class Address:
    """A Redis URL taken apart. `kind` is "", "sentinel" or "cluster"; `path` is set for a unix socket."""

    hosts: tuple[tuple[str, int], ...]
    kind: str = ""
    tls: bool = False
    path: str = ""
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Settings:
    """One installation. `redis` and `password` stay out of the repr; `embedded`: `redis` is `data`'s own server."""

    redis: str | None = field(default=None, repr=False)
    namespace: str = "rs"
    data: Path = Path(".redsched")
    shards: int = 16
    lease_ms: int = 3000
    worker_lease_ms: int = 10_000
    result_limit: int = 262_144
    params_limit: int = 65_536
    log_limit: int = 1_048_576
    retention_runs: int = 1000
    retention_age_ms: int = 2_592_000_000
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    db: int | None = None
    embedded: bool = False

    def address(self) -> Address:
        """The URL with `username`, `password` and `db` given apart laid over it. Raises DefinitionError."""
        if self.redis is None:
            raise DefinitionError(f"no Redis URL is set: {URL_HELP}")
        return _overlaid(parse_url(self.redis), self.username, self.password, self.db, "db")


KEYS: Final = tuple(f.name for f in fields(Settings) if f.name != "embedded")


def load_settings(
    cli: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Settings:
    """The settings of this place: CLI > environment > redsched.toml or [tool.redsched] of pyproject.toml > default.

    In `cli`, None means "not given". Without a URL, the running embedded server of the data folder is taken.
    """
    cwd = (cwd or Path.cwd()).absolute()
    environ = os.environ if environ is None else environ
    found = _from_file(cwd) | _from_environment(environ) | _from_cli(cli or {})
    values = {key: _convert(key, value, where) for key, (value, where) in found.items()}
    values["data"] = cwd / Path(values.get("data", ".redsched")).expanduser()
    if values.get("redis") is None:
        from redsched.embedded import find

        values["redis"] = find(values["data"])
        values["embedded"] = values["redis"] is not None
    settings = Settings(**values)
    if settings.redis is not None:
        _overlaid(parse_url(settings.redis), None, None, settings.db, found.get("db", (None, "db"))[1])
    return settings


def _from_file(cwd: Path) -> dict[str, tuple[Any, str]]:
    """`redsched.toml`, else the table [tool.redsched] of pyproject.toml, of this folder only."""
    own, shared = cwd / "redsched.toml", cwd / "pyproject.toml"
    if own.is_file():
        return _checked_keys(_toml(own), own.name)
    if shared.is_file():
        table = _toml(shared).get("tool", {}).get("redsched", {})
        return _checked_keys(table, f"{shared.name} [tool.redsched]")
    return {}


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DefinitionError(f"{path.name}: not readable as TOML: {error}") from None
    except OSError as error:
        raise DefinitionError(f"{path.name}: {error.strerror}") from None


def _checked_keys(table: Mapping[str, Any], place: str) -> dict[str, tuple[Any, str]]:
    if not isinstance(table, Mapping):
        raise DefinitionError(f"{place}: must be a table of settings")
    for key in table:
        if key not in KEYS:
            raise DefinitionError(f"{place}: unknown setting '{key}'{_meant(key, KEYS)}")
    return {key: (value, f"{place}: {key}") for key, value in table.items()}


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    names = {key: "REDSCHED_REDIS_URL" if key == "redis" else f"REDSCHED_{key.upper()}" for key in KEYS}
    return {key: (environ[name], name) for key, name in names.items() if environ.get(name)}


def _from_cli(cli: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    for key in cli:
        if key not in KEYS:
            raise TypeError(f"load_settings: '{key}' is no setting{_meant(key, KEYS)}")
    return {key: (value, f"--{key.replace('_', '-')}") for key, value in cli.items() if value is not None}


def _meant(word: str, words: tuple[str, ...]) -> str:
    close = get_close_matches(word, words, n=1)
    return f" (did you mean '{close[0]}'?)" if close else f" (known: {', '.join(words)})"


def _convert(key: str, value: Any, where: str) -> Any:
    if key in BOUNDS:
        return _number(key, value, where)
    if not isinstance(value, str | Path):
        raise DefinitionError(f"{where}: must be text, not {_shown(key, value)}; put it in quotes")
    text = str(value)
    if key == "namespace" and not NAMESPACE.fullmatch(text):
        raise DefinitionError(
            f"{where}: '{text}' can't be a namespace; write 1 to 32 letters, digits, '_' or '-', not beginning with '-'"
        )
    if key == "redis":
        parse_url(text.strip(), where)
        return text.strip()
    if key == "data" and (not text or "\0" in text):
        raise DefinitionError(f"{where}: write the path of a folder")
    return text


def _shown(key: str, value: Any) -> str:
    return "***" if key in ("password", "redis") else repr(value)


def _number(key: str, value: Any, where: str) -> int:
    """A whole number within its bounds; `…_ms` also as "3s", "30d"."""
    number: int | None = value if isinstance(value, int) and not isinstance(value, bool) else None
    units = r"(ms|s|m|h|d)?" if key.endswith("_ms") else "()"
    if isinstance(value, str) and (match := re.fullmatch(rf"(\d{{1,15}}){units}", value.strip())):
        number = int(match[1]) * TIMES[match[2] or "ms"]
    low, high = BOUNDS[key]
    if number is None or not low <= number <= high:
        unit = " (milliseconds, or with a unit as in 3s)" if key.endswith("_ms") else ""
        raise DefinitionError(f"{where}: {value!r} must be a whole number from {low} to {high}{unit}")
    return number


# ---- Redis URLs ----


def mask_url(url: str) -> str:
    """The URL as it may be shown: no password, even if the URL is written wrongly."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return "***@" + url.rpartition("@")[2] if "@" in url else url
    rest = SECRET_OPTION.sub(r"\1***", rest)
    user, at, host = rest.rpartition("@")
    if scheme.lower() == "unix" and rest.startswith("/"):
        return f"{scheme}://{rest}"
    if at:
        name, colon, _ = user.partition(":")
        shown = f"{name}:***" if colon and re.fullmatch(r"[\w.%-]*", name) else "***"
        return f"{scheme}://{shown}@{host}"
    # `redis://user:secret` has lost its host; `redis://host:6379` is fine.
    authority = re.split(r"[/?#]", re.sub(r"\[[^\]]*\]", "", rest), maxsplit=1)[0]
    lost = any(":" in part and not part.partition(":")[2].isdigit() for part in authority.split(","))
    return f"{scheme}://***" if lost else f"{scheme}://{rest}"


def parse_url(url: str, where: str = "") -> Address:
    """Take a Redis URL apart, strictly: what would be cut or mis-read silently is refused. Raises DefinitionError."""
    scheme, mark, rest = url.partition("://")
    scheme = scheme.lower()
    if not mark or scheme not in SCHEMES:
        raise _wrong(where, f"{mask_url(url)!r} is no Redis URL; {URL_HELP}")
    authority, tail = _split(rest, r"[/?#]")
    _refuse_raw(scheme, authority, tail, where)
    user, at, hostpart = authority.rpartition("@")
    username, password = _login(user, where) if at else (None, None)
    path, query = _split(tail, r"[?]")
    base, _, kind = scheme.partition("+")
    options = _options(query.removeprefix("?"), where)
    if base != "rediss" and (tls := [name for name in options if name.startswith("ssl_")]):
        raise _wrong(where, f"URL option {tls[0]} needs TLS; write rediss instead of {base}")
    address = Address((), kind, base == "rediss", username=username, password=password, options=options)
    if base == "unix":
        return _unix(address, hostpart, unquote(path), where)
    hosts = _hosts(hostpart, 26379 if kind == "sentinel" else 6379, where)
    if len(hosts) > 1 and not kind:
        raise _wrong(where, f"{scheme}:// takes one host; for several {URL_HELP}")
    parts = [unquote(p) for p in path.strip("/").split("/") if p]
    service = parts.pop(0) if kind == "sentinel" and parts else ""
    if kind == "sentinel" and not service:
        raise _wrong(where, "a sentinel URL names the service: redis+sentinel://h1:26379,h2:26379/service/0")
    db = _database(parts, options, where)
    if kind == "cluster" and db:
        raise _wrong(where, "a Redis Cluster has only database 0; leave the number away")
    return replace(address, hosts=hosts, service=service, db=db)


def _wrong(where: str, message: str) -> DefinitionError:
    return DefinitionError(f"{where}: {message}" if where else message)


def _split(text: str, marks: str) -> tuple[str, str]:
    found = re.search(marks, text)
    return (text[: found.start()], text[found.start() :]) if found else (text, "")


def _refuse_raw(scheme: str, authority: str, tail: str, where: str) -> None:
    """Reserved characters of a password move the borders of the URL: seen by an '@' that is not where it should be."""
    path_may_have_at = scheme == "unix" and authority == ""
    user, at, _ = authority.rpartition("@")
    strayed = "@" in user or ("@" in tail and not path_may_have_at)
    if strayed or (at and re.search(r"[\s\[\]]|%(?![0-9A-Fa-f]{2})", user)):
        raise _wrong(where, f"{scheme}://***: {ENCODE_HELP}")
    if "#" in tail:
        raise _wrong(where, f"{scheme}://***: '#' has no meaning in a Redis URL; in a password write %23")
    if re.search(r"\s", authority + tail):
        raise _wrong(where, f"{scheme}://***: a URL has no spaces; write %20")


def _login(user: str, where: str) -> tuple[str | None, str | None]:
    name, colon, secret = user.partition(":")
    try:
        texts = unquote(name, errors="strict"), unquote(secret, errors="strict")
    except UnicodeDecodeError:
        raise _wrong(where, f"the user or password in the URL is not UTF-8; {ENCODE_HELP}") from None
    return texts[0] or None, (texts[1] or None) if colon else None


def _hosts(text: str, port: int, where: str) -> tuple[tuple[str, int], ...]:
    return tuple(_host(part, port, where) for part in text.split(","))


def _host(text: str, port: int, where: str) -> tuple[str, int]:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]*)(?::(\d{1,5}))?", text)
    if match is None or not 0 < int(match[2] or port) < 65536:
        # The text may be a password whose host was lost, so it is not shown.
        raise _wrong(where, f"the URL has no host:port where one should be (IPv6 in brackets); {URL_HELP}")
    return unquote(match[1]).strip("[]") or "localhost", int(match[2] or port)


def _unix(address: Address, host: str, path: str, where: str) -> Address:
    if host or len(path) < 2:
        raise _wrong(where, "a unix URL has three slashes and a path: unix:///run/redis.sock?db=0")
    return replace(address, path=path, db=_database([], address.options, where))


def _database(parts: list[str], options: Mapping[str, Any], where: str) -> int:
    if len(parts) > 1 or (parts and not re.fullmatch(r"\d{1,6}", parts[0])):
        raise _wrong(where, f"the database at the end of the URL must be a number, not '{'/'.join(parts)}'")
    given = options.get("db")
    if parts and given is not None and given != int(parts[0]):
        raise _wrong(where, f"the URL names database {parts[0]} and db={given}; keep one")
    return int(parts[0]) if parts else given or 0


def _options(query: str, where: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in ("username", "password"):
            raise _wrong(
                where, f"'{name}' is no URL option; write redis://user:password@host, or {ENCODE_HELP}"
            )
        if name not in OPTIONS:
            raise _wrong(where, f"unknown URL option '{name}'{_meant(name, OPTIONS)}")
        options[name] = _option(name, value, where)
    return options


def _option(name: str, value: str, where: str) -> Any:
    low = value.lower()
    if name == "db" and value.isdecimal():
        return int(value)
    if name == "protocol" and value in ("2", "3"):
        return int(value)
    if name.endswith("timeout") and re.fullmatch(r"\d{1,4}(\.\d+)?", value) and float(value) >= 0.05:
        return float(value)
    if name == "ssl_check_hostname" and low in ("true", "yes", "1", "false", "no", "0"):
        return low in ("true", "yes", "1")
    if name == "ssl_cert_reqs" and low in ("required", "optional", "none"):
        return low
    if (name in TEXT_OPTIONS or name.startswith("sentinel_")) and value:
        return value
    wanted = {"protocol": "2 or 3", "db": "a number", "ssl_cert_reqs": "required, optional or none"}
    kinds = "seconds from 0.05 to 9999" if name.endswith("timeout") else "true or false" if low else "a value"
    shown = "***" if "password" in name else value
    raise _wrong(where, f"URL option {name}={shown}: write {wanted.get(name, kinds)}")


def _overlaid(
    address: Address, username: str | None, password: str | None, db: int | None, where: str
) -> Address:
    if address.kind == "cluster" and db:
        raise _wrong(where, "a Redis Cluster has only database 0; leave the number away")
    return replace(
        address,
        username=address.username if username is None else username,
        password=address.password if password is None else password,
        db=address.db if db is None else db,
    )
