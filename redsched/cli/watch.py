"""What `up` does with its PATHs: looks at their files each second, and registers again when one has changed.

Registering runs in a process of its own, so that Python files are read afresh and can't harm `up`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from redsched.cli.children import Say, program

SUFFIXES = frozenset({".yaml", ".yml", ".json", ".py"})
SKIPPED = frozenset({"__pycache__", "node_modules", "venv", "site-packages"})
EVERY_S = 1.0
# A look may take a tenth of the time at most; a tree of 100,000 files is looked at less often.
PAUSE_PER_LOOK = 10
REGISTER_TIMEOUT_S = 300

Seen = dict[str, tuple[int, int]]
Row = dict[str, Any]


def files(paths: Sequence[Path]) -> Iterator[str]:
    """The files below the paths that hold DAGs, or code that they import."""
    for path in paths:
        if not path.is_dir():
            yield str(path)
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = [f for f in folders if not f.startswith(".") and f not in SKIPPED]
            yield from (os.path.join(folder, n) for n in names if Path(n).suffix in SUFFIXES and n[0] != ".")


def look(paths: Sequence[Path]) -> Seen:
    """Time and size of each file."""
    seen: Seen = {}
    for name in files(paths):
        try:
            status = os.stat(name)
        except OSError:
            continue
        seen[name] = (status.st_mtime_ns, status.st_size)
    return seen


def differing(old: Seen, new: Seen) -> set[str]:
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


class Registrar:
    """Registers the paths; says what is new, and each error once. Gives up when `stopped()`."""

    def __init__(
        self,
        paths: Sequence[Path],
        env: Mapping[str, str],
        say: Say,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.paths, self.env, self.say, self.stopped = list(paths), dict(env), say, stopped
        self.dags: dict[str, str] = {}  # DAG -> its file
        self._complaints: set[tuple[str, str]] = set()

    def register(self) -> bool:
        """False if it could not be done at all; the reason has been said."""
        answer = self._ask()
        if answer is None:
            return False
        out, errors = answer
        try:
            self._tell(json.loads(out))
        except ValueError:
            last = (errors.strip().splitlines() or ["no answer"])[-1]
            self._complain("", last.removeprefix("Error: "))
            return False
        return True

    def _ask(self) -> tuple[str, str] | None:
        process = subprocess.Popen(
            program("dag", "register", "--json", "--", *map(str, self.paths)),
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
        )
        end = time.monotonic() + REGISTER_TIMEOUT_S
        while True:
            try:
                return process.communicate(timeout=0.2)
            except subprocess.TimeoutExpired:
                over = time.monotonic() > end
            if over or self.stopped():
                process.kill()
                process.communicate()
                if over:
                    self._complain("", f"reading the DAG files took more than {REGISTER_TIMEOUT_S} s")
                return None

    def _tell(self, rows: list[Row]) -> None:
        wrong = [row for row in rows if "error" in row]
        self._complaints &= {(row["path"], row["error"]) for row in wrong}
        for row in wrong:
            self._complain(row["path"], row["error"])
        good = {row["dag"]: row for row in rows if "dag" in row}
        for name, row in good.items():
            for text in row.get("warnings", ()):
                self._complain(row["path"], text)
            if row["changed"] or name not in self.dags:
                self.say(
                    name,
                    f"v{row['version']} {'registered' if row['changed'] else 'unchanged'} ({row['path']})",
                )
        broken = {row["path"] for row in wrong}
        for name, path in list(self.dags.items()):
            if name not in good and path not in broken:
                self.say(
                    name, f"is not in the files any more; it stays registered: redsched dag delete {name}"
                )
                del self.dags[name]
        self.dags |= {name: row["path"] for name, row in good.items()}

    def _complain(self, path: str, text: str) -> None:
        if (path, text) not in self._complaints:
            self._complaints.add((path, text))
            self.say("files", f"ERROR {text if path in text else f'{path}: {text}'}")


class Watcher(threading.Thread):
    """Looks each second; a change counts when the next look sees no further one, so that half a save is not read."""

    def __init__(self, registrar: Registrar, seen: Seen, reload: Callable[[], None]) -> None:
        super().__init__(name="watch", daemon=True)
        self.registrar, self.seen, self.reload = registrar, seen, reload

    def run(self) -> None:
        pending: set[str] = set()
        while True:
            before = time.monotonic()
            now = look(self.registrar.paths)
            changed = differing(self.seen, now)
            self.seen = now
            if pending and not changed:
                self.act(pending)
                pending = set()
            pending |= changed
            pause = max(EVERY_S, (time.monotonic() - before) * PAUSE_PER_LOOK)
            time.sleep(pause / 4 if pending else pause)

    def act(self, changed: Iterable[str]) -> None:
        done = self.registrar.register()
        if done and any(name.endswith(".py") for name in changed):
            self.reload()


def hang_up(children: Iterable[Any]) -> None:
    """Workers import their code again."""
    for child in children:
        child.signal(signal.SIGHUP)


def holds_dags(folder: Path) -> bool:
    """Does this folder itself hold a file that looks like a DAG? Nothing is imported."""
    for path in sorted(folder.iterdir()):
        if path.suffix in SUFFIXES and path.is_file() and not path.name.startswith("."):
            with path.open("rb") as file:
                head = file.read(65536)
            marks = (b"from redsched", b"import redsched") if path.suffix == ".py" else (b"dag:", b'"dag"')
            if any(line.lstrip(b" {").startswith(marks) for line in head.splitlines()):
                return True
    return False
