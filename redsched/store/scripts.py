"""The Lua scripts: found, joined with what they include, loaded, and called with keys by name.

A script's header is data: `-- cell:`, `-- keys:`, `-- args:`, `-- flags:`. The loader turns keys and args into named
locals, so Lua and Python can't disagree about positions. Redis keeps each as a function of its own library: what it includes
is run once, when it is loaded, not at every call. "Function not found" means "did not run": load and say it again, here only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redsched.errors import Conflict, Fenced, NotFound, RedschedError, Resharded
from redsched.store.connect import translate

if TYPE_CHECKING:
    from redis import Redis

INCLUDE = re.compile(r"^-- include: (\S+)\n", re.MULTILINE)
HEADER = re.compile(r"^-- (cell|keys|args|flags): *(.*)$")


Arg = str | bytes | int | float
# name, keys, args: a call to be sent together with others.
Call = tuple[str, tuple[str, ...], tuple[Arg, ...]]


@dataclass(frozen=True)
class Script:
    """One script: its name (`shard/advance`), header, what it includes and what is run at each call."""

    name: str
    cell: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    flags: str
    definitions: str
    main: str

    @cached_property
    def _steps(self) -> str:
        fixed = (a for a in self.args if a != "...")
        names = [f"local {k} = KEYS[{i}]\n" for i, k in enumerate(self.keys, 1) if k != "..."]
        names += [f"local {a} = ARGV[{i}]\n" for i, a in enumerate(fixed, 1)]
        return "".join(names) + self.main

    @cached_property
    def plain(self) -> str:
        """As a script for EVAL, for servers without functions (fakeredis)."""
        return self.definitions + self._steps

    @cached_property
    def plain_sha(self) -> str:
        return hashlib.sha1(self.plain.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def function(self) -> str:
        """Its name in Redis. Another text has another name, so that versions live side by side."""
        return f"redsched_{self.name.replace('/', '_')}_{self.plain_sha[:12]}"

    @cached_property
    def library(self) -> str:
        """What FUNCTION LOAD is given. Like `#!lua` scripts it can't touch other slots of a cluster, nor write when memory is full."""
        flags = ", ".join(f"'{f}'" for f in self.flags.removeprefix("flags=").split(",") if f)
        return (
            f"#!lua name={self.function}\n{self.definitions}"
            f"redis.register_function{{ function_name = '{self.function}', flags = {{ {flags} }}, "
            f"callback = function(KEYS, ARGV)\n{self._steps}end }}\n"
        )


def lua_root() -> Path:
    """`lua/` inside the installed package, else the folder beside it in a checkout."""
    inside = Path(__file__).parent.parent / "lua"
    return inside if inside.is_dir() else Path(__file__).parent.parent.parent / "lua"


def expand(name: str, root: Path, seen: set[str], stack: tuple[str, ...] = ()) -> tuple[str, str]:
    """(everything that `name` includes, each once and in order of need; its own text without the include lines).

    Raises RedschedError for a missing file or a cycle, naming the chain of includes.
    """
    if name in stack:
        raise RedschedError(f"lua include cycle: {' -> '.join((*stack, name))}")
    path = root / name
    if not path.is_file():
        raise RedschedError(f"lua include not found: {name} (from {stack[-1] if stack else 'the loader'})")
    text = path.read_text()
    parts: list[str] = []
    for wanted in INCLUDE.findall(text):
        if wanted not in seen:
            parts += expand(wanted, root, seen, (*stack, name))
    seen.add(name)
    return "".join(parts), INCLUDE.sub("", text)


def parse(name: str, root: Path) -> Script:
    """Read `<name>.lua`: header, includes, and the rest."""
    definitions, main = expand(f"{name}.lua", root, set())
    head: dict[str, str] = {}
    for line in main.splitlines():
        if not line.startswith("--"):
            break
        if found := HEADER.match(line):
            head[found[1]] = found[2].strip()
    keys, args = tuple(head.get("keys", "").split()), tuple(head.get("args", "").split())
    return Script(name, head["cell"], keys, args, head.get("flags", ""), definitions, main)


@cache
def all_scripts() -> dict[str, Script]:
    root = lua_root()
    names = sorted(p.relative_to(root).with_suffix("").as_posix() for p in root.glob("*/*.lua"))
    return {n: parse(n, root) for n in names if not n.startswith("lib/")}


class Scripts:
    """Calls scripts on one client. `plain=True`: as scripts instead of functions, for fakeredis."""

    def __init__(
        self, client: Redis, *, plain: bool = False, on_resharded: Callable[[], None] = lambda: None
    ) -> None:
        self.client = client
        self.plain = plain
        self.on_resharded = on_resharded

    def _words(self, name: str) -> tuple[str, str]:
        script = all_scripts()[name]
        return ("EVALSHA", script.plain_sha) if self.plain else ("FCALL", script.function)

    def _load(self, name: str) -> None:
        from redis.exceptions import ResponseError

        script = all_scripts()[name]
        if self.plain:
            self.client.script_load(script.plain)
            return
        try:
            self.client.function_load(script.library)
        except ResponseError as error:
            if "already exists" not in str(error):  # because another process was faster
                raise

    def call(self, name: str, keys: tuple[str, ...], *args: Arg) -> Any:
        """Run one script. Raises Fenced, NotFound, Unavailable (did not happen) or MayHaveHappened."""
        from redis.exceptions import ResponseError

        words = self._words(name)
        with translate():
            try:
                try:
                    return self.client.execute_command(*words, len(keys), *keys, *args)
                except ResponseError as error:
                    if not _unknown(error):
                        raise
                self._load(name)
                return self.client.execute_command(*words, len(keys), *keys, *args)
            except ResponseError as error:
                raise self._refusal(error) from None

    def _refusal(self, error: Exception) -> Exception:
        found = refusal(error)
        if isinstance(found, Resharded):
            self.on_resharded()
        return found

    def _together(self, calls: Sequence[tuple[Arg, ...]]) -> list[Any]:
        if many := getattr(self.client, "many", None):
            return list(many(calls))
        pipe: Any = self.client.pipeline(transaction=False)
        for words in calls:
            pipe.execute_command(*words)
        replies: list[Any] = pipe.execute(raise_on_error=False)
        return replies

    def many(self, calls: Sequence[Call]) -> list[Any]:
        """Run several scripts in one round trip; a call that was refused leaves its error in the list.

        Scripts that the server does not know are loaded first and said again: they did not run.
        """
        from redis.exceptions import ResponseError

        if len(calls) == 1:
            name, keys, args = calls[0]
            try:
                return [self.call(name, keys, *args)]
            except (Fenced, NotFound, Conflict, Resharded) as error:
                return [error]
        todo = list(range(len(calls)))
        results: list[Any] = [None] * len(calls)
        for _ in range(2):
            with translate():
                replies = self._together(
                    [
                        (*self._words(name), len(keys), *keys, *args)
                        for name, keys, args in map(calls.__getitem__, todo)
                    ]
                )
            for i, reply in zip(todo, replies, strict=True):
                results[i] = reply
            todo = [i for i in todo if isinstance(results[i], ResponseError) and _unknown(results[i])]
            if not todo:
                break
            with translate():
                for name in {calls[i][0] for i in todo}:
                    self._load(name)
        for i, reply in enumerate(results):
            if isinstance(reply, ResponseError):
                results[i] = refused = self._refusal(reply)
                if refused is reply:
                    with translate():
                        raise reply
        return results


def _unknown(error: Exception) -> bool:
    """The server does not have this script (yet, or any more)."""
    return str(error).startswith(
        ("Function not found", "ERR Function not found", "NOSCRIPT", "No matching script")
    )


def resharded(shards: str = "", target: str = "") -> str:
    """What to say of an installation with so many shards (`target`: it is just getting so many)."""
    if target:
        how = f"wait for it, or finish it with: redsched shards resize {target}"
        return f"the number of shards is being changed to {target}; {how}"
    return f"the number of shards has been changed to {shards or 'another one'}"


def refusal(error: Exception) -> Exception:
    """A script's own refusals as our errors; anything else goes on to `translate`."""
    word, _, rest = str(error).partition(" ")
    if word == "FENCED":
        return Fenced(rest)
    if word == "NOTFOUND":
        return NotFound(f"{rest} does not exist" if "not" not in rest and "expired" not in rest else rest)
    if word == "CONFLICT":
        return Conflict(rest)
    if word == "RESHARDED":
        return Resharded(resharded(*rest.split(" ")))
    return error
