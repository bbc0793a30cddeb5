"""`redsched up`: everything in one command: Redis, schedulers, workers, and DAG files that are watched.

It holds no state of its own: everything is in Redis, so it may be killed and started again at any time.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from queue import Full, Queue
from typing import TYPE_CHECKING, Any

import click

from redsched.cli.base import BROKEN_PIPE, INTERRUPTED, Command, state
from redsched.cli.names import DAG
from redsched.cli.output import safe
from redsched.errors import Conflict, DefinitionError, RedschedError
from redsched.keys import CANARY

if TYPE_CHECKING:
    from redsched.cli.children import Child
    from redsched.client import Client
    from redsched.settings import Settings

GRACE_S = 30.0
STEP_S = 0.1
QUEUED_LINES, LAST_LINES_S = 10_000, 2.0
LEVELS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}
COLOURS = {"success": "green", "failed": "red", "cancelled": "bright_black"}
# What a child puts in front of its lines, and lines that are noise as long as nothing is wrong.
STAMP = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+ worker \S+: ")
NOISE = re.compile(r"INFO (shard \d+|leader, fence)")
RUN_ENDED = re.compile(r"run (\S+/\S+) (success|failed|cancelled) in ")


@click.command(cls=Command, json=True, short_help="Everything in one command.")
@click.argument("paths", metavar="[PATH]…", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--workers", type=click.IntRange(0, 1000), default=1, show_default=True, metavar="N", help="Workers."
)
@click.option(
    "--schedulers", type=click.IntRange(0, 100), default=1, show_default=True, metavar="N", help="Schedulers."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Tasks at a time in a worker [number of cores].",
)
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Port of the web page.")
@click.option("--no-web", is_flag=True, help="Without the web page.")
@click.option(
    "--once", type=DAG, metavar="DAG", help="Run this DAG once, print the result, stop: exit 0 or 1."
)
@click.option(
    "-p", "--param", "params", metavar="NAME=VALUE", multiple=True, help="A parameter for --once; repeat it."
)
def up(
    paths: tuple[Path, ...],
    workers: int,
    schedulers: int,
    concurrency: int | None,
    port: int | None,
    no_web: bool,
    once: str | None,
    params: tuple[str, ...],
) -> None:
    """Everything in one command: a scheduler, a worker, and the DAG files of each PATH, watched.

    Without a Redis URL it starts an embedded server that keeps its data in --data. Without a PATH it takes the
    folder `dags`, or DAG files in this folder. Its workers serve all pools. A changed file is registered again.
    SIGTERM or Ctrl-C: running tasks may end (30 s), a second one stops them.
    """
    if params and not once:
        raise click.UsageError("-p gives a parameter to --once; add --once DAG")
    if state().json and not once:
        raise click.UsageError("--json prints the result of --once; add --once DAG")
    lines = Lines(err=once is not None, verbose=state().verbose > 0)
    if port is not None and not no_web:
        lines.say("up", "WARNING there is no web page yet; --port changes nothing")
    settings = state().settings()
    try:
        with locked(settings.data):
            site = Up(settings, list(paths) or default_paths(), workers, schedulers, concurrency, lines)
            code = site.run(once, params)
    finally:
        lines.close()
    raise click.exceptions.Exit(code)


def default_paths() -> list[Path]:
    from redsched.cli.watch import holds_dags

    if Path("dags").is_dir():
        return [Path("dags")]
    return [Path(".")] if holds_dags(Path(".")) else []


@contextmanager
def locked(data: Path) -> Iterator[None]:
    """One `up` on a data folder. The lock is the kernel's, so it never outlives the process."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (data / "up.lock").open("a+")
    except OSError as error:
        raise DefinitionError(f"data folder {data}: {error.strerror}; give another with --data DIR") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise Conflict(
                f"`redsched up` (process {file.read().strip() or '?'}) runs with {data} already; "
                "stop it, or take another folder with --data"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


class Lines:
    """The calm lines: time, who, what. With --once they go to stderr, because stdout is for the result.

    A thread writes them, because a terminal that is held (Ctrl-S) must not hold a worker that wants to say something.
    """

    def __init__(self, err: bool, verbose: bool = False) -> None:
        self.err, self.verbose = err, verbose
        self.ended: deque[str] = deque(maxlen=1000)
        self.broken = False  # nobody reads any more
        self._lines: Queue[tuple[datetime, str, str] | None] = Queue(QUEUED_LINES)
        self._writer = threading.Thread(target=self._write, name="lines", daemon=True)
        self._writer.start()

    def say(self, who: str, text: str) -> None:
        if ended := RUN_ENDED.search(text):
            self.ended.append(ended[1])
        if self.verbose or not NOISE.match(text):
            with suppress(Full):
                self._lines.put_nowait((datetime.now(UTC), who, text))

    def close(self) -> None:
        """Write what is left, if that is possible in a moment."""
        with suppress(Full):
            self._lines.put(None, timeout=LAST_LINES_S)
        self._writer.join(LAST_LINES_S)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                click.echo(self._styled(*line), err=self.err)
            except OSError:
                self.broken = True
                return

    def _styled(self, at: datetime, who: str, text: str) -> str:
        level, _, rest = STAMP.sub("", text).partition(" ")
        colour = LEVELS.get(level)
        text = rest if colour or level in ("INFO", "DEBUG") else f"{level} {rest}".rstrip()
        if ended := RUN_ENDED.search(text):
            colour = COLOURS[ended[2]]
        head = click.style(f"{at:%H:%M:%SZ}  {safe(who):<10}", fg="bright_black")
        return f"{head}  {click.style(safe(text), fg=colour)}"


def environment(settings: Settings) -> dict[str, str]:
    """What a child needs to find the same Redis; never on its command line, where `ps` would show a password."""
    env = dict(os.environ)
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name != "embedded" and value is not None:
            env["REDSCHED_REDIS_URL" if field.name == "redis" else f"REDSCHED_{field.name.upper()}"] = str(
                value
            )
    return env


class Up:
    """One `redsched up`."""

    def __init__(
        self,
        settings: Settings,
        paths: list[Path],
        workers: int,
        schedulers: int,
        concurrency: int | None,
        lines: Lines,
    ) -> None:
        self.settings, self.paths, self.lines = settings, paths, lines
        self.counts = {"scheduler": schedulers, "worker": workers}
        self.concurrency = concurrency
        self.schedulers: list[Child] = []
        self.workers: list[Child] = []
        self.leaving: list[Child] = []
        self.stops = 0
        self.closing = False
        self.redis_lock = threading.Lock()
        self.pools: set[str] = {"default"}
        self.wanted_pools = set(self.pools)
        self.env: Mapping[str, str] = {}

    # ---- from start to end

    def run(self, once: str | None, params: tuple[str, ...]) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        with self._redis() as settings:
            self.settings, self.env = settings, environment(settings)
            try:
                return self._serve(once, params)
            finally:
                self._stop()

    def _on_signal(self, _number: int, _frame: Any) -> None:
        self.stops += 1

    @contextmanager
    def _redis(self) -> Iterator[Settings]:
        """The Redis that was named, or the embedded server of the data folder."""
        if self.settings.redis is not None and not self.settings.embedded:
            yield self.settings
            return
        from redsched import embedded

        url = embedded.ensure(self.settings.data)
        self.lines.say("redis", f"embedded server, data in {shown(self.settings.data)}")
        try:
            yield replace(self.settings, redis=url, embedded=True)
        finally:
            with self.redis_lock:
                self.closing = True
            embedded.stop(self.settings.data)

    def mind_redis(self) -> None:
        """Start the embedded server again if it has died; all clients find it at the same socket."""
        if not self.settings.embedded:
            return
        from redsched import embedded

        with self.redis_lock:
            if not self.closing and nobody_listens(self.settings.address().path):
                self.lines.say("redis", "WARNING the embedded server has ended; starting it again")
                embedded.ensure(self.settings.data)

    def _serve(self, once: str | None, params: tuple[str, ...]) -> int:
        from redsched.cli.watch import Registrar, Watcher, hang_up, look
        from redsched.client import Client

        client = Client(settings=self.settings)
        client.schedulers()  # because a Redis that is away should be met here, as one line
        self.schedulers = [self._child("scheduler", i) for i in range(self.counts["scheduler"])]
        registrar = Registrar(self.paths, self.env, self.lines.say, lambda: self.stops > 0)
        if self.paths:
            seen = look(self.paths)
            registrar.register()
            Watcher(registrar, seen, lambda: hang_up(self.workers)).start()
        self.pools = self.wanted_pools = pools_of(client)
        self._start_workers()
        Events(self, Client(settings=self.settings)).start()
        if once:
            return self._once(client, once, params)
        self._say_ready(list(registrar.dags))
        while not self.stops and not self.lines.broken:
            self._step()
        return BROKEN_PIPE if self.lines.broken else 0

    def _say_ready(self, dags: list[str]) -> None:
        at_once = self.concurrency or cores()
        counted = (
            f"{plural(self.counts['scheduler'], 'scheduler')}, {plural(self.counts['worker'], 'worker')}"
        )
        self.lines.say(
            "up", f"ready: {counted} with {plural(at_once, 'task')} at a time; Ctrl-C stops everything"
        )
        data = state().given.get("data")
        more = f" --data {data}" if data else ""
        if dags:
            self.lines.say("up", f"start a run: redsched run start {dags[0]}{more}")
        elif not self.paths:
            self.lines.say(
                "up", f"no DAG files here; name some: redsched up PATH, or: redsched dag register PATH{more}"
            )

    def _step(self) -> None:
        for child in (*self.schedulers, *self.workers):
            child.look()
        self.leaving = [child for child in self.leaving if child.alive]
        if self.wanted_pools != self.pools:
            self._serve_other_pools(set(self.wanted_pools))
        time.sleep(STEP_S)

    def _stop(self) -> None:
        from redsched.cli.children import stop_all

        workers, stops = [*self.workers, *self.leaving], max(1, self.stops)
        if any(child.alive for child in workers):
            self.lines.say("up", f"stopping; what runs may take {GRACE_S:g} s more, Ctrl-C again stops it")
        stop_all(workers, GRACE_S + 15, lambda: self.stops > stops)
        stop_all(self.schedulers, 10, lambda: False)
        if workers or self.schedulers:
            self.lines.say("up", "stopped")

    # ---- children

    def _child(self, kind: str, index: int, *words: str) -> Child:
        from redsched.cli.children import Child

        name = kind if self.counts[kind] == 1 else f"{kind} {index + 1}"
        child = Child(name, [kind, *words], self.env, self.lines.say)
        child.start()
        return child

    def _start_workers(self) -> None:
        words = [word for pool in sorted(self.pools) for word in ("--pool", pool)]
        words += ["--concurrency", str(self.concurrency or cores()), "--grace", f"{GRACE_S:g}s"]
        words += ["--", *map(str, self.paths)]
        self.workers = [self._child("worker", i, *words) for i in range(self.counts["worker"])]

    def _serve_other_pools(self, pools: set[str]) -> None:
        """New workers take over; the old ones end what they run."""
        self.pools = pools
        if self.counts["worker"]:
            self.lines.say("up", f"serving the pools {', '.join(sorted(pools))}")
        for child in self.workers:
            child.terminate()
        self.leaving += self.workers
        self._start_workers()

    # ---- --once

    def _once(self, client: Client, dag: str, params: tuple[str, ...]) -> int:
        from redsched.cli.output import print_json
        from redsched.cli.run import read_inputs, show_run
        from redsched.states import ENDED

        values, _ = read_inputs(client, dag, params, None)
        run = client.trigger(dag, values)["run"]
        found = client.run(dag, run)
        while found["state"] not in ENDED:
            if self.stops:
                self.lines.say("up", f"WARNING stopped before the run {run} of {dag} had ended")
                return INTERRUPTED
            self._step()
            found = client.run(dag, run)
        if state().json:
            print_json(found)
        else:
            show_run(found)
        return 0 if found["state"] == "success" else 1


class Events(threading.Thread):
    """Looks each second for runs that have started and pools that are new. Ends come from the schedulers' own lines."""

    def __init__(self, site: Up, client: Client) -> None:
        super().__init__(name="events", daemon=True)
        self.site, self.client = site, client
        self.known: set[str] | None = None
        self.away = False

    def run(self) -> None:
        while not self.site.stops:
            try:
                self.site.mind_redis()
                self.look()
            except RedschedError as error:
                if not self.away:  # once; the schedulers say when it is back
                    self.site.lines.say("redis", f"WARNING {error}")
                self.away = True
            else:
                self.away = False
            time.sleep(1.0)

    def look(self) -> None:
        running = {f"{r['dag']}/{r['run']}" for r in self.client.runs(state="running", limit=50)}
        word = "goes on" if self.known is None else "started"
        for name in sorted(running - (self.known or set()) - set(self.site.lines.ended)):
            self.site.lines.say("run", f"run {name} {word}")
        self.known = running
        self.site.wanted_pools = pools_of(self.client)


def nobody_listens(path: str) -> bool:
    """A server that is only slow still takes the connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(5.0)
        try:
            link.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return False
    return False


def pools_of(client: Client) -> set[str]:
    return {"default"} | {row["pool"] for row in client.pools() if not row["pool"].startswith(CANARY)}


def cores() -> int:
    from redsched.cli.system import cores as usable

    return usable()


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def shown(path: Path) -> str:
    """Below this folder a path is shown as people type it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
