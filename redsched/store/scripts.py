"""The Lua scripts: found, joined with what they include, loaded, and called with keys by name.

A script's header is data: `-- cell:`, `-- keys:`, `-- args:`, `-- flags:`. The loader turns keys and args into named
locals, so Lua and Python can't disagree about positions. NOSCRIPT means "did not run": load and say it again, here only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redsched.errors import Conflict, Fenced, NotFound, RedschedError
from redsched.store.connect import translate

if TYPE_CHECKING:
    from redis import Redis

INCLUDE = re.compile(r"^-- include: (\S+)$", re.MULTILINE)
HEADER = re.compile(r"^-- (cell|keys|args|flags): *(.*)$")


Arg = str | bytes | int | float
# name, keys, args: a call to be sent together with others.
Call = tuple[str, tuple[str, ...], tuple[Arg, ...]]


@dataclass(frozen=True)
class Script:
    """One script: its name (`shard/advance`), header and expanded text."""

    name: str
    cell: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    flags: str
    body: str

    @cached_property
    def text(self) -> str:
        """What is sent to Redis: the `#!lua` line makes it refuse other cells, and writes when memory is full."""
        return f"#!lua {self.flags}".rstrip() + "\n" + self.body

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


def lua_root() -> Path:
    """`lua/` inside the installed package, else the folder beside it in a checkout."""
    inside = Path(__file__).parent.parent / "lua"
    return inside if inside.is_dir() else Path(__file__).parent.parent.parent / "lua"


def expand(name: str, root: Path, seen: list[str], stack: tuple[str, ...] = ()) -> str:
    """The text of `name` with every include put in its place, each once, in order of need.

    Raises RedschedError for a missing file or a cycle, naming the chain of includes.
    """
    if name in stack:
        raise RedschedError(f"lua include cycle: {' -> '.join((*stack, name))}")
    path = root / name
    if not path.is_file():
        raise RedschedError(f"lua include not found: {name} (from {stack[-1] if stack else 'the loader'})")
    text = path.read_text()
    for wanted in INCLUDE.findall(text):
        part = "" if wanted in seen else expand(wanted, root, seen, (*stack, name))
        text = text.replace(f"-- include: {wanted}", part, 1)
    seen.append(name)
    return text


def parse(name: str, root: Path) -> Script:
    """Read `<name>.lua`: header, includes, named locals."""
    source = (root / f"{name}.lua").read_text()
    head: dict[str, str] = {}
    for line in source.splitlines():
        if not line.startswith("--"):
            break
        if found := HEADER.match(line):
            head[found[1]] = found[2].strip()
    keys, args = tuple(head.get("keys", "").split()), tuple(head.get("args", "").split())
    fixed = tuple(a for a in args if a != "...")
    names = [f"local {k} = KEYS[{i}]\n" for i, k in enumerate(keys, 1)]
    names += [f"local {a} = ARGV[{i}]\n" for i, a in enumerate(fixed, 1)]
    body = "".join(names) + expand(f"{name}.lua", root, [])
    return Script(name, head["cell"], keys, args, head.get("flags", ""), body)


@cache
def all_scripts() -> dict[str, Script]:
    root = lua_root()
    names = sorted(p.relative_to(root).with_suffix("").as_posix() for p in root.glob("*/*.lua"))
    return {n: parse(n, root) for n in names if not n.startswith("lib/")}


class Scripts:
    """Calls scripts on one client. `plain=True` leaves out the `#!lua` line, which fakeredis can't read."""

    def __init__(self, client: Redis, *, plain: bool = False) -> None:
        self.client = client
        self.plain = plain
        self._shas: dict[str, str] = {}

    def _text(self, script: Script) -> str:
        return script.body if self.plain else script.text

    def _sha(self, script: Script) -> str:
        if self.plain:
            return hashlib.sha1(script.body.encode(), usedforsecurity=False).hexdigest()
        return script.sha

    def call(self, name: str, keys: tuple[str, ...], *args: Arg) -> Any:
        """Run one script. Raises Fenced, NotFound, Unavailable (did not happen) or MayHaveHappened."""
        from redis.exceptions import NoScriptError, ResponseError

        script = all_scripts()[name]
        with translate():
            try:
                try:
                    return self.client.evalsha(self._sha(script), len(keys), *keys, *args)
                except NoScriptError:
                    self.client.script_load(self._text(script))
                    return self.client.evalsha(self._sha(script), len(keys), *keys, *args)
            except ResponseError as error:
                raise refusal(error) from None

    def many(self, calls: Sequence[Call]) -> list[Any]:
        """Run several scripts in one round trip; a call that was refused leaves its error in the list.

        Scripts that the server does not know are loaded first and said again: a NOSCRIPT did not run.
        """
        from redis.exceptions import NoScriptError, ResponseError

        if len(calls) == 1:
            name, keys, args = calls[0]
            try:
                return [self.call(name, keys, *args)]
            except (Fenced, NotFound, Conflict) as error:
                return [error]
        scripts = [all_scripts()[name] for name, _, _ in calls]
        todo = list(range(len(calls)))
        results: list[Any] = [None] * len(calls)
        for _ in range(2):
            with translate():
                pipe: Any = self.client.pipeline(transaction=False)
                for i in todo:
                    _, keys, args = calls[i]
                    pipe.execute_command("EVALSHA", self._sha(scripts[i]), len(keys), *keys, *args)
                replies = pipe.execute(raise_on_error=False)
            for i, reply in zip(todo, replies, strict=True):
                results[i] = reply
            todo = [i for i in todo if isinstance(results[i], NoScriptError)]
            if not todo:
                break
            for i in todo:
                with translate():
                    self.client.script_load(self._text(scripts[i]))
        for i, reply in enumerate(results):
            if isinstance(reply, ResponseError):
                results[i] = refused = refusal(reply)
                if refused is reply:
                    with translate():
                        raise reply
        return results


def refusal(error: Exception) -> Exception:
    """A script's own refusals as our errors; anything else goes on to `translate`."""
    word, _, rest = str(error).partition(" ")
    if word == "FENCED":
        return Fenced(rest)
    if word == "NOTFOUND":
        return NotFound(f"{rest} does not exist" if "not" not in rest and "expired" not in rest else rest)
    if word == "CONFLICT":
        return Conflict(rest)
    return error
